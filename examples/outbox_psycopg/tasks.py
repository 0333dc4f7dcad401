"""The handler that ``shop.py`` submits and an agent runs."""

from jobmaster import Handlers

handlers = Handlers()


@handlers.job(name="mail.confirm")
def confirm(email: str, number: int) -> str:
    return f"order {number} is confirmed to {email}"
