"""Stands in for fastapi: keeps the routes, and resolves Depends at a call."""
import asyncio
import inspect


class Depends:
    def __init__(self, function):
        self.function = function


class HTTPException(Exception):
    def __init__(self, status_code, detail=""):
        super().__init__(detail)
        self.status_code = status_code


class APIRouter:
    def __init__(self, **options):
        self.routes = {}

    def get(self, path, **options):
        def keep(function):
            self.routes[path] = function
            return function

        return keep

    post = get


class FastAPI(APIRouter):
    def include_router(self, router):
        self.routes.update(router.routes)

    def call(self, path, **values):
        function = self.routes[path]
        for name, parameter in inspect.signature(function).parameters.items():
            if isinstance(parameter.default, Depends):
                values[name] = parameter.default.function()
        answer = function(**values)
        return asyncio.run(answer) if inspect.isawaitable(answer) else answer
