from langchain.retrievers import EnsembleRetriever
print "made for Python 2"
