"""The work of this application: one handler that makes a thumbnail."""

from pathlib import Path

from PIL import Image, UnidentifiedImageError
from pydantic import BaseModel, Field

from jobmaster import Fail, Handlers

handlers = Handlers()


class Order(BaseModel):
    """What is to be made. The job has the place of the picture and not its bytes."""

    picture: Path
    width: int = Field(default=200, gt=0, le=2000)


class Thumbnail(BaseModel):
    picture: Path
    width: int
    height: int


# A process of its own: pictures cost processor time, and a broken one may cost the process.
@handlers.job(name="thumbnails.make", mode="process", timeout=30, max_attempts=3)
def make_thumbnail(order: Order) -> Thumbnail:
    # The same order always writes the same file, so a second attempt does no harm.
    made = order.picture.with_suffix(f".{order.width}.png")
    try:
        with Image.open(order.picture) as image:
            image.thumbnail((order.width, order.width))
            image.save(made)
            return Thumbnail(picture=made, width=image.width, height=image.height)
    except UnidentifiedImageError:
        raise Fail("this is not a picture") from None  # another attempt would not help
