from pathlib import Path
from tempfile import TemporaryDirectory

from retrievers import TFIDFRetriever

tfidf = TFIDFRetriever.from_texts(["The seal leaks.", "The fan hums."])
with TemporaryDirectory() as folder:
    tfidf.save_local(folder, "pumps")
    print(*(path.name for path in Path(folder).iterdir()))
    loaded = TFIDFRetriever.load_local(folder, file_name="pumps")
print(loaded.invoke("leaks")[0].page_content)
