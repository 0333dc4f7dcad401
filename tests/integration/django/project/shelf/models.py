"""What the tasks read and write."""

from __future__ import annotations

from django.db import models


class Book(models.Model):
    title = models.CharField(max_length=200)

    class Meta:
        app_label = "shelf"
