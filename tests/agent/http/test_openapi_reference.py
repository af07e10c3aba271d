"""The generated part of `docs/reference/http-api.md`."""

from __future__ import annotations

from agent.http.openapi_reference import PAGE, render_reference, update


def test_the_page_agrees_with_the_schema() -> None:
    """If this fails, run: python -m agent.http.openapi_reference."""
    page = PAGE.read_text(encoding="utf-8")
    assert page == update(page)


def test_types_name_bounds_models_and_null() -> None:
    reference = {"$ref": "#/components/schemas/Rock"}
    model = {
        "description": "A rock\nof some kind.",
        "required": ["age"],
        "properties": {
            "age": {"type": "integer", "minimum": 1, "maximum": 9, "description": "Years."},
            "parts": {"type": "array", "items": reference},
            "names": {"type": "object", "additionalProperties": {"type": "string"}, "nullable": True},
            "kind": {"enum": ["lava", "sand"], "default": "sand"},
        },
    }
    rendered = render_reference({"paths": {}, "components": {"schemas": {"Rock": model}}})
    assert rendered.splitlines()[-10:] == [
        "### Rock",
        "",
        "A rock of some kind.",
        "",
        "| field | type | default | description |",
        "|---|---|---|---|",
        "| `age` | integer (1 to 9) | required | Years. |",
        "| `parts` | array of [Rock](#rock) |  |  |",
        "| `names` | object of string or null |  |  |",
        "| `kind` | `lava` or `sand` | `sand` |  |",
    ]
