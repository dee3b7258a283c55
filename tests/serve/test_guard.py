"""Who may ask a server."""

from __future__ import annotations

import pytest
from running_server import running

from edge.bundle import Bundle
from edge.errors import InputError

BODY = {"prompt": "x", "max_tokens": 1}


def test_other_names_and_other_pages_are_refused(pristine_tiny_bundle: Bundle) -> None:
    with running(pristine_tiny_bundle) as client:
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "[", ""):
            response = client.get("/v1/models", headers={"Host": host})
            assert response.status_code in (400, 403), host  # 400: it is no name
        port = client.base_url.port
        for host in (f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
            assert client.get("/v1/models", headers={"Host": host}).status_code == 200
        page = {"Origin": "https://evil.example"}
        assert client.post("/v1/completions", json=BODY, headers=page).status_code == 403
        assert client.post("/v1/completions", json=BODY, headers={"Origin": "http://["}).status_code == 403
        own = {"Origin": f"http://127.0.0.1:{port}"}
        assert client.post("/v1/completions", json=BODY, headers=own).status_code == 200
        assert "access-control-allow-origin" not in client.get("/v1/models", headers=own).headers


def test_pages_that_were_named_may_ask(pristine_tiny_bundle: Bundle) -> None:
    page = {"Origin": "http://localhost:3000"}
    with running(pristine_tiny_bundle, origins=("http://localhost:3000",)) as client:
        response = client.post("/v1/completions", json=BODY, headers=page)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://localhost:3000"
        asking = page | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        assert client.options("/v1/completions", headers=asking).status_code == 200
        assert client.post("/v1/completions", json=BODY, headers={"Origin": "http://localhost:3001"}).status_code == 403


def test_a_key_is_demanded(pristine_tiny_bundle: Bundle) -> None:
    with running(pristine_tiny_bundle, key="secret") as client:
        for given in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": "secret"},
            {"Authorization": "Basic secret"},
        ):
            for path in ("/v1/models", "/metrics", "/api/tags"):
                response = client.get(path, headers=given)
                assert response.status_code == 401 and "secret" not in response.text
        assert client.get("/api/tags").json() == {"error": client.get("/v1/models").json()["error"]["message"]}
        assert client.get("/v1/models", headers={"Authorization": "Bearer secret"}).status_code == 200
        for path in ("/health", "/", "/page.js", "/page.css"):
            assert client.get(path).status_code == 200


def test_other_machines_need_a_key() -> None:
    pytest.importorskip("starlette")
    from edge.serve.server import Address

    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(InputError, match="--api-key"):
            Address(host, 8080)
        Address(host, 8080, key="secret")
    for host in ("localhost", "127.0.0.1", "127.0.0.5", "::1"):
        Address(host, 8080)


def test_a_key_may_have_any_letters(pristine_tiny_bundle: Bundle) -> None:
    with running(pristine_tiny_bundle, key="schlüssel") as client:
        given = {b"Authorization": "Bearer schlüssel".encode()}
        assert client.get("/v1/models", headers=given).status_code == 200
