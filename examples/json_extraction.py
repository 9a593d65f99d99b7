"""Facts from a text as an instance of a pydantic model: the output cannot have another form.

Start a server, then: python examples/json_extraction.py http://127.0.0.1:30000
"""

import sys
from typing import Annotated

from pydantic import BaseModel, Field

from runtime import ProgramState, RuntimeEndpoint, assistant, function, gen, user


class Person(BaseModel):
    name: Annotated[str, Field(max_length=30)]
    age: int
    city: Annotated[str, Field(max_length=30)]


@function
def extract(s: ProgramState, text: str) -> None:
    s += user(f"Extract the name, age and city as JSON: {text}")
    s += assistant(gen("person", max_tokens=120, json_schema=Person, temperature=0))


if __name__ == "__main__":
    with RuntimeEndpoint(sys.argv[1]) as server:
        state = extract.run("Maria, who is 34 years old, lives in Lisbon.", backend=server)
        person: Person = state["person"]
        print(f"{person.name}, {person.age}, {person.city}")
