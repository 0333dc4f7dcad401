"""Orders are taken and shown."""

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_GET, require_POST

from orders.models import Item, Order
from orders.tasks import pack


class SoldOut(Exception):
    """The stock is too small."""


@csrf_exempt
@require_POST
def take(request: HttpRequest) -> JsonResponse:
    """Order, job and stock are changed together, or none of them is."""
    wanted = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(item_id=wanted["item"], quantity=wanted["quantity"])
            order.task = pack.enqueue(order.pk).id
            order.save(update_fields=["task"])
            item = Item.objects.select_for_update().get(pk=wanted["item"])
            if item.stock < order.quantity:
                raise SoldOut(f"there are only {item.stock} of {item.name}")
            item.stock -= order.quantity
            item.save(update_fields=["stock"])
    except SoldOut as error:
        return JsonResponse({"error": str(error)}, status=409)
    return JsonResponse({"order": order.pk, "task": order.task}, status=201)


@require_GET
def show(request: HttpRequest, number: int) -> JsonResponse:
    """The order, and how its task is doing."""
    order = get_object_or_404(Order, pk=number)
    result = pack.get_result(order.task)
    return JsonResponse(
        {
            "order": order.pk,
            "item": order.item_id,
            "quantity": order.quantity,
            "parcel": order.parcel,
            "task": result.status,
        }
    )
