from langchain_core.documents import Document

from retrievers.query_filter import (
    AttributeInfo,
    FilterTranslator,
    PredicateTranslator,
    checked_filter,
)
from retrievers.query_parser import parse_filter

attributes = [
    AttributeInfo(name="year", description="of release", type="integer"),
    AttributeInfo(name="genre", description="jazz, rock", type="string"),
]
written = "and(eq(genre, 'jazz'), lt(year, '1960'))"
wanted = checked_filter(parse_filter(written), attributes)
print(wanted.accept(FilterTranslator()))
song = Document(
    page_content="Rain", metadata={"genre": "jazz", "year": 1958}
)
print(wanted.accept(PredicateTranslator())(song))
try:
    checked_filter(parse_filter({"owner": "me"}), attributes)
except ValueError as error:
    print(error)
