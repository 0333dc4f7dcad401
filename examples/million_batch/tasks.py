"""A small job, and the callback of a batch of them."""

from jobmaster import Handlers, JobContext

handlers = Handlers()


@handlers.job(name="million.square")
async def square(number: int) -> int:
    return number * number


@handlers.job(name="million.report")
async def report(ctx: JobContext) -> str:
    return f"batch {ctx.metadata['batch']} has ended"
