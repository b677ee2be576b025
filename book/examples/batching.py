import asyncio

from retrievers.batching import CommonBatches, token_batches

for batch in token_batches([12, 80, 9, 74, 11], tokens=160, most=32):
    print("texts of one batch:", batch)

calls = []


def lengths(texts):
    calls.append(texts)
    return [len(text) for text in texts]


async def callers():
    model = CommonBatches(lengths)
    with model.model_lock:  # someone else has the model just now
        asked = [
            asyncio.create_task(model.arun(["owl", "owl " * n]))
            for n in range(3)
        ]
        await asyncio.sleep(0)
    print("answers:", await asyncio.gather(*asked))


asyncio.run(callers())
print("calls of the model:", len(calls))
