"""The tables of the shop, and ten lamps."""

import django.db.models.deletion
from django.db import migrations, models


def fill(apps, schema_editor):
    apps.get_model("orders", "Item").objects.create(name="lamp", stock=10)


class Migration(migrations.Migration):
    initial = True
    operations = (
        migrations.CreateModel(
            "Item",
            [
                ("name", models.CharField(max_length=50, primary_key=True, serialize=False)),
                ("stock", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("item", models.ForeignKey("orders.Item", on_delete=django.db.models.deletion.PROTECT)),
                ("quantity", models.PositiveIntegerField()),
                ("task", models.CharField(max_length=64)),
                ("parcel", models.CharField(max_length=100, default="")),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    )
