from langchain_community.retrievers import BM25Retriever
from langchain.retrievers import MergerRetriever, EnsembleRetriever
class Box:
	def __init__( self , texts ):
		self.words = BM25Retriever.from_texts( texts , preprocess_func = str.split , k = 1 )
		self.both = EnsembleRetriever( retrievers = [ self.words ] , weights = [ 1 ] , c = 5 )
	def ask( self , question ):
		if question :
			return MergerRetriever( retrievers = [ self.both ] ).get_relevant_documents( question )
		return [ ]
	def constant( self ):
		return self.both.c
box = Box( [ "red kite" , "grey heron" , "black coot" ] )
print( box.ask( "grey" )[ 0 ].page_content , box.ask( "" ) , box.constant( ) )
