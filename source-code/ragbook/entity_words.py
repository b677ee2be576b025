"""The lists of English words that `entities` goes by: what is no name, and what is no term."""

from __future__ import annotations


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


CONNECTORS = _words("von van der den de del della di da du la le los")
"""What may stand between the capitalised words of a name."""

HEADS = _words(
    """
    Academy Act Agency Art Association Bank Battle Bay Bill Bishop Board Book Bureau Cape
    Chamber Charter Church City Code College Commission Committee Community Company
    Confederation Conference Congress Convention Council Court Day Declaration Department Duke
    Elements Emperor Faculty Federation Foundation Gulf History House Institute Institution Isle
    Journal King Kingdom Lake Law Laws League Library Minister Ministry Mount Museum
    Nature Office Order Organisation Organization Origin Origins Parliament Party Peace
    President Principles Province Queen Republic Review Rules School Sea Secretary Senate
    Society State States Strait System Theory Treaty Union University War Wealth
    """
)
"""What is followed by `of` and the rest of its name; a person's name is not, so that `James
Connolly of Boston` are two."""

DETERMINERS = _words(
    "a an the this that these those its his her their our my your any each every some no another "
    "of in with by from"
)
"""What a noun phrase follows."""

MONTHS = _words(
    """
    January February March April May June July August September October November December
    Monday Tuesday Wednesday Thursday Friday Saturday Sunday
    """
)
"""No name by themselves, but perhaps a part of one: Friedrich August von Hayek."""

ADJECTIVES = _words(
    """
    African American Americans Arabic Asian Austrian Belgian British Catholic Chinese Christian
    Czech Danish Dutch Eastern English European Europeans Finnish French German Germans Greek
    Greeks Hungarian Indian Irish Italian Japanese Jewish Korean Latin Muslim Northern Norwegian
    Olympic Polish Portuguese Protestant Roman Romans Russian Scottish Southern Spanish Swedish
    Swiss Turkish Welsh Western
    """
)
"""Capitalised words that are a part of names, and no name by themselves."""

NOT_NAMES = _words(
    "Frenchman Englishman Mr Mrs Ms Dr Prof AD BC AM PM OK NB PS No "
    "I II III IV VI VII VIII IX XI XII"
)
"""Capitalised words that are no part of a name."""

NOUN_ENDINGS = (
    *("tion", "sion", "ment", "ness", "ity", "ism", "ance", "ence", "ology", "graphy", "ics"),
    *("ine", "ide", "ate", "gen", "ase", "ose", "acid", "ium"),
)
"""How nouns of science and administration end."""

NOT_TERMS = _words(
    """
    ability able about above absence according across actual actually addition advance
    afterwards again ago agreement air alike almost alone along alongside already also although
    always among amount amounts another answer answers anybody anyone anything apart area areas
    argue argued argues around ask asked asks attention audience away back bad badly basket
    baskets became become becomes bed began begin beginning begun behind beside best better big
    bill billion bills bit body book books bottom boy boys bring brings brought build built burn
    burns burnt business call called calls came cannot care case cases caught cause caused
    causes centimetre centimetres century certain chance change changed changes chapter chapters
    child children choice choices choose city claim claimed claims class classes clean clear
    climate close closed closes coat cold colleague colleagues collection come comes coming
    comment comments common community company compare compared complete completely condition
    conditions contain contained contains cost costs count counted countries country course
    create creates crowd cup cut dark day days deal decade decades decide decided decides
    decision decisions deep define defined defines definition definitions degree degrees
    department depend depends describe described describes description determine develop
    developed difference differences different difficult dinner direction discipline discover
    discovered distance divide divides doctor document documents dollar dollars door doubt dozen
    draw dropped dry earlier early easily easy edge edition effect effort efforts eight eighteen
    eighteenth eighth eighty eleven else elsewhere empty end ended ends enough especially
    estimate estimates even evening ever every everybody everyone everything exactly examine
    example exceed experience explain explained explains fact facts fall falls famous far fast
    father fee feel feels fees feet felt fifteen fifteenth fifth fifty figure figures find finds
    first fit fits five floor follow followed follows food foot form forms forty found founded
    four fourteen fourteenth fourth free fresh friend friends full function gain gap gaps gave
    general generation get gets girl girls give given gives go goes going gone good goodness got
    gram grams great ground group groups grow grows half hand hands happen happened happens
    happiness hard hardly head heads heavy held help helped helps high higher hill hold holding
    holds home hot hour hours house hundred hundredth idea ideas identity illness imagine
    importance important inch inches include included includes including increase increases
    indicate information inside instead introduce introduced introduction job join keep keeps
    kept kilogram kilograms kilometer kilometers kilometre kilometres kind kinds knew know known
    knows large largely largest last late later lay lead leader leads learn learned least leave
    leaves led left length less let lets letter letters level lie lies life light like likely
    limit limits line lines list litre litres little live lived lives long longer look looks
    lose loses lost lot low lower lunch machine machines made magazine main mainly majority make
    makes making man management mankind many mark match matter matters may meal mean meaning
    means meant measure measured medicine medium meet member members men mention mentions met
    meter meters metre metres middle might mile miles millilitre millilitres millimetre
    millimetres million minority minute minutes modern moment month months morning mostly move
    moved movement moves much must name named names near nearly need needed needs neighbour
    neighbours neither never new next night nine nineteen nineteenth ninety ninth nobody none
    nor normal note notes nothing now number numbers occur odd offer offered often old older
    once one open opened operate opinion opinions opportunity order orders ordinary other others
    otherwise outside owner owners page pages paper part parts party pass passed passes past pay
    payment payments pays people per percent perhaps person phrase piece pieces place places
    plain plan plans play point points position positions possibility possible pound pounds
    premium prepared presence private problem problems produce produced produces propose
    proposed provide provides purchase purpose purposes put puts quantity quarter question
    questions quick quicker quickest quickly quiet quite ran rather raw reach reached reaches
    read reading ready real reality reason reasons receive received remain remained remains
    require required requires rest result results return returns right rise rises room round
    rule rules run running runs safe said sale sample samples save saves saw say saying says
    season seat seats second section sections security see seem seems seen sense sentence
    sentences separate set sets seven seven-eighths seventeen seventeenth seventh seventy
    several shall share shared shares sharp shop short show showed shown shows side sides
    silence simple simply since single sit sits situation six sixteen sixteenth sixth sixty size
    slow slowly small society sold somebody someone something sometimes soon sort sound speak
    spend spends spent stadium stage stages stand stands start started starts state statement
    statements states stay stayed step steps still stood stop stopped story street strong
    student students study subject sum suppose sure table tables take taken takes taking talk
    taught tax teach teacher tell tells ten tend tenth term terms test tested tests thick thin
    thing things think third thirteen thirteenth thirty those thought thousand thousands three
    time times tire today together told took top total toward towards town traces trade
    traveller travellers treatment trick tried true try turn turned turns twelfth twelve
    twentieth twenty two type types university upon use used useful user users uses using usual
    usually value variety vary version versions view voice voices walk wall walls want wanted
    wants warm way ways weak weakness week weeks weigh weight well went wet whatever whether
    whoever whole whose wide window wish within without witness woman women won word words wore
    work worked working works world worse worth would write writes written wrong wrote yard
    yards year years yet young
    """
)
"""Words that say nothing about a subject: common verbs, adverbs, adjectives and general nouns."""
