"""Settings of the shop. ``$DATABASE_URL`` and ``$STORE_URL`` name its servers."""

import os
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

BASE_DIR = Path(__file__).parents[1]
SECRET_KEY = os.environ.get("SECRET_KEY", "an example has no secrets")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

database = urlsplit(os.environ["DATABASE_URL"])
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": database.hostname or parse_qs(database.query).get("host", [""])[0],
        "PORT": database.port or "",
        "NAME": unquote(database.path.lstrip("/")),
        "USER": unquote(database.username or ""),
        "PASSWORD": unquote(database.password or ""),
    }
}

INSTALLED_APPS = ["jobmaster.django", "orders"]
if find_spec("django.tasks") is None:
    INSTALLED_APPS.append("django_tasks")

TASKS = {
    "default": {
        "BACKEND": "jobmaster.django.JobMasterBackend",
        "OPTIONS": {"config": BASE_DIR / "jobmaster.yaml"},
    }
}
