"""An OpenAPI document as one page for people, without scripts or anything from elsewhere."""

import html
from typing import Final

from pearl_api.openapi import Document

_STYLE: Final = (
    "body{font:15px system-ui;margin:2rem;max-width:70rem}td,th{padding:.2rem .8rem;text-align:left;"
    "vertical-align:top;border-bottom:1px solid #ddd}"
)


def html_page(document: Document) -> str:
    """The document for people."""
    rows = "".join(
        f"<tr><td>{method.upper()}</td><td><code>{html.escape(path)}</code></td>"
        f"<td>{html.escape(operation['summary'])}</td><td>{_reference(operation.get('requestBody'))}</td>"
        f"<td>{_reference(operation['responses']['200'])}</td></tr>"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )
    models = "".join(_model(name, schema) for name, schema in document["components"]["schemas"].items())
    title = html.escape(document["info"]["title"])
    about = html.escape(document["info"]["description"])
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style>"
        f'<h1>{title}</h1><p><a href="/v1/loans/openapi.json">OpenAPI document</a></p><pre>{about}</pre>'
        f"<table><tr><th>method<th>path<th>what<th>body<th>answer</tr>{rows}</table>{models}</html>"
    )


def _reference(content: Document | None) -> str:
    if content is None:
        return ""
    name = content["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[-1]
    return f'<a href="#{name}">{name}</a>'


def _model(name: str, schema: Document) -> str:
    required = schema.get("required", [])
    rows = "".join(
        f"<tr><td><code>{html.escape(field)}</code></td><td>{html.escape(_type(part))}</td>"
        f"<td>{'required' if field in required else ''}</td><td>{html.escape(part.get('description', ''))}</td></tr>"
        for field, part in schema.get("properties", {}).items()
    )
    return f'<h2 id="{name}">{name}</h2><p>{html.escape(schema.get("description", ""))}</p><table>{rows}</table>'


def _type(schema: Document) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).rsplit("/", 1)[-1]
    if "anyOf" in schema:
        return " or ".join(_type(part) for part in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", "any"))
