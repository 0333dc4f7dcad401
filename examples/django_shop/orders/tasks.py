"""What is done after an order."""

from importlib.util import find_spec

from jobmaster.django import job_options
from orders.models import Order

if find_spec("django.tasks") is not None:
    from django.tasks import task
else:
    from django_tasks import task


@task(priority=50)
@job_options(timeout=30)
def pack(order: int) -> str:
    """Once or again: the same order gives the same parcel."""
    found = Order.objects.select_related("item").get(pk=order)
    found.parcel = f"{found.quantity} x {found.item.name}"
    found.save(update_fields=["parcel"])
    return found.parcel
