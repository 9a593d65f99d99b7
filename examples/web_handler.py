"""An async web application: each request runs a program, and no thread waits for it.

Start a server, then: python examples/web_handler.py http://127.0.0.1:30000
and: curl 'http://127.0.0.1:8000/haiku?topic=snow'
"""

import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from runtime import ProgramState, RuntimeEndpoint, assistant, function, gen, user

app = FastAPI()


@function
async def haiku(s: ProgramState, topic: str) -> None:
    s += user(f"Write a haiku about {topic}.")
    s += assistant(gen("poem", max_tokens=40, temperature=0))


@app.get("/haiku")
async def answer(topic: str) -> StreamingResponse:
    state = await haiku.arun(topic, backend=app.state.server, stream=True)

    async def pieces() -> AsyncIterator[str]:
        try:
            async for piece in state.text_async_iter("poem"):
                yield piece
        finally:
            state.cancel()  # a client that has gone needs no more of it

    return StreamingResponse(pieces(), media_type="text/plain")


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as app.state.server:
        uvicorn.run(app, port=int(sys.argv[2]) if len(sys.argv) > 2 else 8000)
