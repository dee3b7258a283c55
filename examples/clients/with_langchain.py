"""LangChain over OpenAI's protocol (pip install langchain-openai)."""

from langchain_openai import ChatOpenAI

model = ChatOpenAI(base_url="http://127.0.0.1:8080/v1", api_key="none", model="model")
for piece in model.stream("Name three rivers."):
    print(piece.content, end="", flush=True)
