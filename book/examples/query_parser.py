from retrievers.query_parser import parse_structured_query

reply = """Sure! Here it is:
```json
{"query": "rain", "filter": {"year": {"$lt": 1960}}, "limit": 3}
```"""
said = parse_structured_query(reply)
print(said.query, said.limit)
print(said.filter)
