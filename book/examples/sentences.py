from langchain_core.documents import Document

from retrievers.sentences import cut_document, located_sentences

document = Document(
    id="owls#1",
    page_content="Owls hunt at night. Dr. Hood counted 30 of them in "
    "one wood. They eat mice. They nest in hollow trees.",
)
sentences = located_sentences(document.page_content)
for sentence, place in sentences:
    print(place, sentence)
numbered = [place for sentence, place in sentences if "30" in sentence]
nesting = [place for sentence, place in sentences if "nest" in sentence]
cut = cut_document(document, numbered + nesting)
print(cut.page_content)
print(cut.id, cut.metadata["compressed"])
