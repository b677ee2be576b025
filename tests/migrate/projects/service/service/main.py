from fastapi import APIRouter, Depends, FastAPI, HTTPException

from service import deps
from service.models import Answer, Hit, size

router = APIRouter(prefix="/search")


@router.get("/parts", response_model=Answer)
async def parts(q: str, retriever=Depends(deps.reranked)) -> Answer:
    docs = await retriever.aget_relevant_documents(q)
    return Answer(hits=[Hit.of(doc) for doc in docs])


@router.get("/by-name")
def by_name(q: str, name: str):
    retriever = deps.maybe(name)
    if retriever is None:
        raise HTTPException(404, f"no retriever {name}")
    return [d.page_content for d in retriever.get_relevant_documents(q, callbacks=[], tags=["web"])][:2]


@router.get("/health")
def health(retriever=Depends(deps.keywords)):
    return {"documents": size(retriever)}


app = FastAPI()
app.include_router(router)

if __name__ == "__main__":
    print([hit.text for hit in app.call("/parts", q="bolt M4 zinc").hits])
    print(app.call("/by-name", q="nut M6 brass", name="plain")[0])
    print(app.call("/health"))
    try:
        app.call("/by-name", q="x", name="none")
    except HTTPException as error:
        print(error.status_code, error)
