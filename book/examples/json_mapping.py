import json

from retrievers.json_mapping import JsonMapping, UnfitJson

answer = json.loads(
    """{"hits": [
        {"key": 7, "fields": [{"value": "Owls hunt at night."}],
         "rank": {"score": 3}, "url": "owls.html"},
        {"key": 8, "fields": []}
    ]}"""
)
mapping = JsonMapping(
    text="/fields/0/value",
    id="/key",
    score="/rank/score",
    metadata={"source": "/url", "author": "/author"},
)
print(mapping(answer["hits"][0]))
try:
    mapping(answer["hits"][1])
except UnfitJson as error:
    print(error)
