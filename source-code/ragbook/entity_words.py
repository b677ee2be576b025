"""The lists of English words that `entities` goes by: what is no name, and what is no term."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONNECTORS = _words("of the von van der den de del della di da du la le los for")
"""What may stand between the capitalised words of a name."""

DETERMINERS = _words(
    "a an the this that these those its his her their our my your any each every some no another "
    "of in with by from"
)
"""What a noun phrase follows."""

NOT_NAMES = _words(
    """
    January February March April May June July August September October November December
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    German Germans French English British American Austrian Russian Belgian Swiss Roman Greek
    Italian Spanish Dutch Danish Swedish Norwegian Polish Czech Turkish Chinese Japanese Indian Latin
    Frenchman Englishman European Christian Olympic
    AD BC AM PM OK I II III IV VI VII VIII IX XI XII NB PS No
    """
)
"""Capitalised words that name no single thing: months, days, adjectives of nations."""

NOUN_ENDINGS = (
    *("tion", "sion", "ment", "ness", "ity", "ism", "ance", "ence", "ology", "graphy", "ics"),
    *("ine", "ide", "ate", "gen", "ase", "ose", "acid", "ium"),
)
"""How nouns of science and administration end."""

NOT_TERMS = _words(
    """
    one two three four five six seven eight nine ten eleven twelve fifteen twenty thirty forty fifty
    hundred thousand million billion first second third fourth half quarter dozen
    able about above according across actual actually afterwards again ago alike almost alone along
    already also although always among amount amounts answer answers anybody anyone anything apart
    area areas around ask asks asked away back bad badly became become becomes began begin beginning
    behind best better big bit body book books bottom bring brings brought build built call called
    calls came cannot care case cases caught cause caused causes century certain chance change
    changed changes child children choose city clear close closed come comes coming common company
    complete completely count counted country countries course cup cut day days deal decade decades
    decide decided decides depend depends different difficult door doubt draw dropped early earlier
    easily easy edge effect eight else empty end ended ends enough especially even evening ever
    every everybody everyone everything example exactly fact facts fall falls famous far fast father
    felt figure figures find finds fit fits follow followed follows form forms found founded free
    friend friends full gain gave general generation get gets give given gives go goes going gone
    good got great group groups grow grows half hand hands happen happened happens hard hardly head
    heads held help helped helps high higher hold holds home hour hours house idea ideas important
    instead job join keep keeps kept kind kinds knew know known knows large largely largest last
    late later lay lead leads learn learned least leave leaves led left length less let lets letter
    letters level lie lies life like likely limit limits line lines list little live lives long
    longer look looks lose loses lost lot low lower made main mainly make makes making man mankind
    many mark match matter matters may mean means meant measure measured meet men met middle might
    minute minutes modern moment month months morning mostly move moved moves much must name named
    names near nearly need needed needs neither never new next night nobody none nor normal nothing
    now number numbers occur odd offer offered often old older once open opened order orders
    ordinary other others otherwise part parts party pass passed passes past pay pays people per
    perhaps person piece pieces place places plain play point points possible prepared problem
    problems put puts question questions quick quicker quickest quickly quiet quite rather reach
    reached reaches read reading ready real reason reasons receive received remain remained remains
    rest result results return returns right rise rises room round rule rules run running runs safe
    said sale save saves saw say saying says season see seem seems seen sense sentence sentences set
    sets several shall share shared shares short show showed shown shows side sides simple simply
    since single sit sits size slow slowly small sold somebody someone something sometimes soon
    sort sound speak stand stands start started starts state states stay stayed step steps still
    stood stop stopped story strong study subject sum sure take taken takes taking talk taught
    teach tell tells tend term terms test tested tests thing things think thought thousands time times
    tire     today together told took top total toward towards town trade traces trick tried true try turn
    turned turns upon use used useful user users uses using usual usually value vary version view
    walk want wanted wants warm way ways week weeks weigh weight well went whatever whether whoever
    whole whose wide wish within without woman women won word words wore work worked working works
    world worse worth would write writes written wrong wrote year years yet young
    """
)
"""Words that say nothing about a subject: common verbs, adverbs, adjectives and general nouns."""
