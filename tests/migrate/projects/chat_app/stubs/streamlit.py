"""Stands in for streamlit: prints what a page would show, and types one question."""
from contextlib import contextmanager

session_state = {}


def set_page_config(**options):
    pass


def title(text):
    print("#", text)


def cache_resource(**options):
    return lambda function: function


def chat_input(label):
    return "the mill stone"


def button(label):
    return False


@contextmanager
def spinner(text):
    yield


def write(*parts):
    print(*parts)


class chat_message:
    def __init__(self, kind):
        self.kind = kind

    def write(self, text):
        print(f"{self.kind}: {text}")
