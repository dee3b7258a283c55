"""A tool that the model calls, and an answer that is an object (pip install openai)."""

import openai
from pydantic import BaseModel


class Weather(BaseModel):
    """Tell the weather of a city."""

    city: str


client = openai.OpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none")
talk = [{"role": "user", "content": "What is the weather in Paris?"}]
tools = [openai.pydantic_function_tool(Weather)]
print(client.chat.completions.create(model="model", messages=talk, tools=tools).choices[0].message.tool_calls)
print(client.chat.completions.parse(model="model", messages=talk, response_format=Weather).choices[0].message.parsed)
