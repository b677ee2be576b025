from langchain_community.retrievers import KNNRetriever, SVMRetriever, TFIDFRetriever

from fakes import NOTES, Vocabulary

knn = KNNRetriever.from_texts(NOTES, Vocabulary(), k=2)
print("knn", [d.page_content for d in knn.invoke("fresh rain in the river")])
svm = SVMRetriever.from_texts(NOTES, Vocabulary(), k=1)
print("svm", [d.page_content for d in svm.invoke("ice on the lake in winter")])
tfidf = TFIDFRetriever.from_texts(NOTES, metadatas=[{"n": n} for n in range(4)], k=2)
print("tfidf", [d.metadata["n"] for d in tfidf.invoke("the seal at the coast")])
