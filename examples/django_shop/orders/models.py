"""What the shop has, and what was ordered."""

from django.db import models


class Item(models.Model):
    name = models.CharField(max_length=50, primary_key=True)
    stock = models.PositiveIntegerField()


class Order(models.Model):
    item = models.ForeignKey(Item, on_delete=models.PROTECT)
    quantity = models.PositiveIntegerField()
    task = models.CharField(max_length=64)
    parcel = models.CharField(max_length=100, default="")
