"""What the whole site needs: its address if it has one, descriptions, nothing from elsewhere."""

from __future__ import annotations

import inspect
import os
import re
from html import escape, unescape
from typing import Any
from urllib.parse import urlsplit

from docutils import nodes
from langchain_core.retrievers import BaseRetriever
from sphinx.application import Sphinx
from sphinx.config import Config
from sphinx.util import logging

logger = logging.getLogger(__name__)

UNUSED = "sphinx_thebe"
"""Jupyter Book always loads it. Its scripts know servers that run code; this book uses none."""


def set_address(app: Sphinx, config: Config) -> None:
    """Take the address of the published book from BOOK_URL.

    Without it the social metadata have no picture, because a picture needs a full address.
    """
    address = os.environ.get("BOOK_URL", "").strip()
    if address:
        address = address.rstrip("/") + "/"
        config.html_baseurl = address
        config.ogp_site_url = address
        config.notfound_urls_prefix = urlsplit(address).path
    else:
        config.ogp_social_cards = {"enable": False}


def unload(app: Sphinx, extension: str) -> None:
    """Disconnect what an extension has connected."""
    for event, listeners in app.events.listeners.items():
        app.events.listeners[event] = [
            listener for listener in listeners if listener.handler.__module__ != extension
        ]


def describe(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Use a page's own description for the social metadata too, and insist that it has one."""
    context["css_files"] = [file for file in context["css_files"] if "thebe" not in str(file)]
    if doctree is None:
        title = context.get("title") or "Page not found"
        description = f"{title}: {app.config.project}."
        tag = f'<meta name="description" content="{escape(description)}" />'
        tags = (
            ("og:title", title),
            ("og:type", "website"),
            ("og:description", description),
            ("og:site_name", app.config.project),
        )
        social = "".join(
            f'<meta property="{name}" content="{escape(text)}" />\n' for name, text in tags
        )
        context["metatags"] = f"{context.get('metatags', '')}\n{tag}\n{social}"
        return
    found = re.search(r'<meta content="([^"]*)" name="description"', context["metatags"])
    if not found:
        message = "This page has no description (myst: html_meta: description)."
        logger.warning(message, location=pagename)
        return
    social = dict.fromkeys(["og:description", "og:image:alt"], unescape(found[1]))
    context["meta"] = {**(context["meta"] or {}), **social}


def name_citations(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Make the entries of a bibliography items of the list that docutils puts them into."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def show_fields(
    app: Sphinx,
    what: str,
    name: str,
    thing: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Show a retriever's own fields as its arguments, as they are written in its file."""
    if what != "class" or not inspect.isclass(thing) or not issubclass(thing, BaseRetriever):
        return signature, returned
    # As written, and also where a class inherits a field from another one of ours.
    annotations = [inspect.get_annotations(owner) for owner in thing.__mro__]
    arguments = []
    for field, info in thing.model_fields.items():
        if field in BaseRetriever.model_fields:
            continue
        written = next(own[field] for own in annotations if field in own)
        argument = f"{field}: {written}"
        if not info.is_required():
            default = info.get_default(call_default_factory=False)
            shown = "..." if info.default_factory else getattr(default, "__name__", repr(default))
            argument += f" = {shown}"
        arguments.append(argument)
    return f"(*, {', '.join(arguments)})", None


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the hooks."""
    unload(app, UNUSED)
    app.connect("config-inited", set_address)
    app.connect("html-page-context", describe, priority=100)
    app.connect("html-page-context", name_citations)
    app.connect("autodoc-process-signature", show_fields)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
