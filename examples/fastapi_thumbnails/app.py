"""An API that takes pictures and hands out thumbnails. The work is done by agents, in other processes."""

import os
from pathlib import Path
from typing import Annotated
from uuid import UUID, uuid4

from fastapi import Depends, FastAPI, HTTPException, Query, Request
from fastapi.responses import FileResponse
from tasks import Order, Thumbnail, handlers, make_thumbnail

from jobmaster import Cluster, JobFailed, JobReceipt, call
from jobmaster.fastapi import get_cluster, handle_errors, jobmaster_lifespan

PICTURES = Path(os.environ.get("PICTURES", "pictures")).absolute()

app = FastAPI(title="Thumbnails", lifespan=jobmaster_lifespan(handlers=handlers))
handle_errors(app)

Jobs = Annotated[Cluster, Depends(get_cluster)]
Width = Annotated[int, Query(gt=0, le=2000)]


@app.post("/thumbnails", status_code=202)
async def submit(request: Request, jobs: Jobs, width: Width = 200) -> JobReceipt[Thumbnail]:
    """Take a picture, which is the body of the request."""
    PICTURES.mkdir(exist_ok=True)
    order = Order(picture=PICTURES / f"{uuid4()}.picture", width=width)
    order.picture.write_bytes(await request.body())
    return await jobs.submit(call(make_thumbnail, order))


@app.get("/thumbnails/{job}")
async def result(job: UUID, jobs: Jobs, wait: float = 0.0) -> Thumbnail:
    """The thumbnail's size; waits for at most ``wait`` seconds. 504 when it is not there by then."""
    try:
        thumbnail: Thumbnail = await jobs.result(job, timeout=min(wait, 30.0))
    except JobFailed as error:
        raise HTTPException(422, error.info.message if error.info else error.message) from error
    return thumbnail


@app.get("/thumbnails/{job}/picture")
async def picture(job: UUID, jobs: Jobs) -> FileResponse:
    """The thumbnail itself."""
    return FileResponse((await result(job, jobs)).picture, media_type="image/png")
