"""The things a story can be asked to be about, each with what is done with it. Data only, besides the inflections.

Uses are in the base form, with ~ where the thing's name goes: "fly ~" gives "fly the kite", "flew the kite".
"""

ANIMALS = {  # kind: (names, what such an animal does, past tense)
    "bird": ("owl duck hen crow robin goose swan parrot eagle pigeon sparrow magpie",
             "flew in a wide circle|hopped along the path|sang a short song|shook its feathers|tapped with its beak"
             "|sat down on a branch|pecked at some seeds"),
    "small": ("mouse rabbit squirrel hedgehog mole hamster frog toad kitten puppy cat lizard turtle tortoise badger"
              " otter beaver",
              "sniffed the air|rolled over in the grass|hid behind a bush|nibbled a green stem|sat very still"
              "|ran three times around a stump|blinked in the sun"),
    "large": ("fox dog wolf bear lion tiger horse pony donkey goat sheep lamb cow pig deer elephant monkey camel zebra",
              "stretched its long legs|trotted past|drank some cool water|lay down in the shade|lifted its head"
              "|sniffed at the ground|came a little closer"),
    "tiny": ("bee ant butterfly beetle spider ladybird cricket snail crab",
             "climbed up a blade of grass|rested on a warm rock|moved slowly over the sand|sat on a twig"
             "|hid under some moss|went around a puddle"),
}

THINGS = {  # kind: name: uses
    "toy": """
kite: fly ~, run with ~, pull ~ by its string
ball: throw ~, kick ~ far, catch ~
hoop: roll ~ down the lane, spin ~
marble: roll ~, count the colours in ~
doll: sing to ~, put ~ to bed
puppet: make ~ dance, put on a show with ~
robot: wind up ~, make ~ walk
sled: ride on ~, pull ~ over the snow
wagon: pull ~, ride in ~
bicycle: ride ~, polish ~
scooter: ride ~, race on ~
balloon: hold ~ tight, blow up ~
boat: row ~, sail in ~
raft: float on ~, push ~ with a pole
mask: wear ~, paint ~
flag: wave ~, raise ~ high
""",
    "music": """
drum: beat ~, play ~, tap on ~
flute: play ~, blow into ~
whistle: blow ~, play a tune on ~
bell: ring ~, polish ~
trumpet: blow ~, play ~ loudly
fiddle: play ~, tune ~
guitar: play ~, strum ~
harp: play ~, tune ~
piano: play ~, sing beside ~
horn: blow ~, sound ~
""",
    "tool": """
lantern: light ~, carry ~ in the dark
lamp: light ~, read beside ~
key: turn ~, try ~ in the lock
rope: throw ~, tie a knot in ~, pull on ~
basket: fill ~, carry ~
bucket: fill ~, carry ~ with both hands
ladder: climb ~, carry ~, lean ~ on a post
broom: sweep with ~, dance with ~
hammer: swing ~, work with ~
shovel: dig with ~, lift ~
rake: clear the leaves with ~, lean on ~
needle: sew with ~, thread ~
compass: look at ~, find the way with ~
map: read ~, unfold ~, follow ~
telescope: look through ~, point ~ at the stars
torch: light ~, shine ~ into the dark
net: cast ~, mend ~
wheel: turn ~, roll ~
anchor: lift ~, drop ~
oar: pull on ~, row with ~
tent: put up ~, sleep in ~
umbrella: open ~, stand under ~
clock: wind ~, listen to ~
magnet: play with ~, pick up pins with ~
cart: push ~, load ~
""",
    "wear": """
hat: wear ~, try on ~
coat: wear ~, button ~
scarf: wear ~, wrap ~ around
boot: try on ~, clean ~
glove: put on ~, warm a hand in ~
mitten: put on ~, knit ~
cap: wear ~, wave ~
cloak: wear ~, fold ~
crown: wear ~, polish ~
necklace: wear ~, look at ~
ribbon: tie ~, wave ~
""",
    "home": """
button: sew on ~, polish ~
coin: toss ~, hide ~
purse: open ~, count the money in ~
box: open ~, carry ~, look into ~
chest: open ~, sit on ~
jar: open ~, fill ~
bottle: fill ~, put a note into ~
cup: drink from ~, fill ~
mug: drink from ~, wash ~
plate: wash ~, paint ~
bowl: fill ~, eat from ~
spoon: stir with ~, polish ~
pot: stir ~, cook soup in ~
kettle: fill ~, put ~ on the fire
teapot: fill ~, pour tea from ~
pan: fry eggs in ~, wash ~
comb: use ~, clean ~
mirror: look into ~, polish ~
candle: light ~, blow out ~
book: read ~, read aloud from ~, open ~
letter: read ~, write ~, fold ~
pencil: draw with ~, sharpen ~
notebook: write in ~, draw in ~
picture: look at ~, paint ~
blanket: fold ~, sit on ~
pillow: shake ~, rest on ~
chair: sit on ~, paint ~
stool: stand on ~, sit on ~
parcel: open ~, carry ~, tie up ~
sack: fill ~, carry ~
""",
    "nature": """
feather: blow on ~, write with ~
shell: listen to ~, wash ~
pebble: toss ~, paint ~
stone: throw ~, paint ~, lift ~
stick: draw in the sand with ~, wave ~
acorn: plant ~, hide ~
flower: smell ~, water ~
rose: smell ~, water ~
tulip: plant ~, water ~
leaf: blow on ~, draw ~
log: sit on ~, roll ~
nest: look into ~, guard ~
""",
    "food": """
pumpkin: carve ~, roll ~, cook ~
apple: eat ~, polish ~, share ~
pear: eat ~, share ~
plum: eat ~, share ~
orange: peel ~, share ~
banana: peel ~, eat ~
cherry: eat ~, share ~
lemon: squeeze ~, slice ~
carrot: pull up ~, eat ~
onion: peel ~, cook ~
turnip: pull up ~, cook ~
potato: bake ~, dig up ~
egg: boil ~, paint ~
cake: bake ~, cut ~, share ~
pie: bake ~, cut ~, share ~
bun: eat ~, share ~
biscuit: eat ~, share ~
pancake: fry ~, eat ~
sandwich: eat ~, share ~
loaf: bake ~, slice ~, share ~
melon: cut ~, share ~
mushroom: pick ~, cook ~
""",
}

PLACES = """
well | at | look down into the dark water; draw cold water; drop a small coin into the water
cave | in | listen to the drips; follow the cold draught; look at the old walls
hill | on | watch the clouds; run all the way down; look far over the land
river | by | skip flat rocks; wade in the water; watch the water
pond | by | feed the small fish; look at the lilies; count the ripples
lake | by | swim for a while; watch the waves; rest on the shore
bridge | on | look down at the water; wave at the people below; stamp on the boards
tower | in | climb the long stairs; look out of the top window; count the steps
castle | in | walk through the great hall; look at the old shields; climb the stairs
barn | in | lie in the hay; jump in the straw; listen to the rain on the roof
mill | at | watch the big wheels turn; smell the fresh flour; help with the heavy bags
farm | on | feed the hens; help with the milking; sit on the fence
garden | in | pull up some weeds; smell the herbs; dig in the soft earth
orchard | in | pick ripe fruit; lie under the branches; climb a branch
meadow | in | lie in the long grass; pick some clover; chase the wind
field | in | walk between the rows; help with the corn; run in the wind
forest | in | look for berries; follow a narrow path; listen to the wind
park | in | walk along the paths; rest on a bench; play a game
beach | on | dig in the sand; jump over the waves; walk along the water
island | on | explore the shore; make a small fire; walk all the way around
harbour | at | count the masts; watch the ships; talk to the sailors
lighthouse | at | climb to the top; look out over the sea; help the keeper
market | at | look at all the stalls; buy some bread; smell the spices
shop | in | look at the shelves; talk to the shopkeeper; count some pennies
bakery | in | smell the warm bread; wait in line; help the baker
school | at | learn a new song; draw on the board; read with the others
library | in | read in a corner; look at the tall shelves; whisper and laugh
museum | in | look at the old bones; walk through the cool rooms; read the labels
station | at | wait on the platform; wave to the driver; watch the people
cottage | in | sit by the fire; drink some warm milk; look out of the window
cabin | in | warm cold hands; cook some soup; bar the door
attic | in | look through the old things; brush away the dust; peep out of the small window
cellar | in | feel along the cold wall; count the barrels; listen in the dark
kitchen | in | help with the soup; wash the dishes; stir the dough
stable | in | brush the horses; fill the troughs; sleep in the straw
shed | in | look behind the boards; tidy the tools; sort the nails
fountain | at | splash in the water; sit on the edge; wash dusty hands
gate | at | lean on the post; wait for a friend; swing back and forth
oak | under | rest in the shade; look up at the branches; tell a tale
haystack | by | rest for a while; slide down the hay; play hide and seek
swamp | in | step from stump to stump; watch the mist; look for tracks
waterfall | by | watch the spray; stand in the mist; listen to the roar
valley | in | shout and hear the echo; follow the stream; gather herbs
mountain | on | climb a steep path; rest on a ledge; look at the snow
desert | in | walk over the hot sand; rest in the shade; look for water
village | in | greet the neighbours; dance in the square; knock on every door
playground | at | climb the bars; run around; play tag
tunnel | in | shout and listen; feel along the wall; walk toward the light
windmill | at | watch the sails turn; stand in the wind; talk to the miller
theatre | in | watch the show; clap and cheer; stand on the stage
palace | in | bow to the queen; walk over the soft rugs; look at the gold doors
camp | at | sit around the fire; sing old songs; toast some bread
inn | at | eat some soup; rest by the fire; listen to the travellers
"""

IRREGULAR = dict(pair.split(":") for pair in (
    "fly:flew run:ran throw:threw catch:caught spin:spun sing:sang put:put make:made ride:rode hold:held "
    "blow:blew beat:beat ring:rang read:read light:lit tie:tied swing:swung dig:dug sew:sewed find:found "
    "cast:cast sleep:slept stand:stood wind:wound wear:wore hide:hid sit:sat drink:drank eat:ate fry:fried "
    "write:wrote draw:drew shake:shook carry:carried try:tried cut:cut dance:danced get:got lean:leaned "
    "feel:felt lie:lay buy:bought learn:learned tell:told hear:heard step:stepped slide:slid go:went "
    "bend:bent feed:fed swim:swam wake:woke say:said give:gave take:took come:came see:saw tidy:tidied "
    "greet:greeted bow:bowed play:played wave:waved stamp:stamped stir:stirred clap:clapped bar:barred "
    "skip:skipped peep:peeped whisper:whispered knit:knitted jump:jumped drop:dropped toast:toasted "
    "strum:strummed tap:tapped chase:chased follow:followed mend:mended race:raced use:used share:shared "
    "explore:explored slice:sliced squeeze:squeezed carve:carved bake:baked raise:raised").split())

VOWEL_SOUND_EXCEPTIONS = {"one", "once", "unicorn", "useful", "usual"}
SILENT_H = {"hour", "honest", "heir"}


def article(phrase):
    """The phrase with a or an before it."""
    first = phrase.split()[0].lower()
    vowel = (first[0] in "aeiou" and first not in VOWEL_SOUND_EXCEPTIONS) or first in SILENT_H
    return ("an " if vowel else "a ") + phrase


def past_word(verb):
    if verb in IRREGULAR:
        return IRREGULAR[verb]
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return verb[:-1] + "ied"
    return verb + "ed"


def past(phrase):
    """'climb the stairs' -> 'climbed the stairs'; a second verb after 'and' is inflected too when it is known."""
    words = phrase.split()
    words[0] = past_word(words[0])
    for i in range(1, len(words) - 1):
        if words[i] == "and" and words[i + 1] in {"laugh", "listen", "cheer", "hear", "watch"}:
            words[i + 1] = past_word(words[i + 1])
    return " ".join(words)


class Item:
    def __init__(self, name, group, kind, uses, prep=""):
        self.name, self.group, self.kind, self.uses, self.prep = name, group, kind, uses, prep


def _load():
    found = {}
    for kind, (names, acts) in ANIMALS.items():
        for name in names.split():
            found[name] = Item(name, "animal", kind, acts.split("|"))
    for kind, block in THINGS.items():
        for line in block.strip().splitlines():
            name, uses = line.split(":")
            found[name] = Item(name, "thing", kind, [u.strip() for u in uses.split(",")])
    for line in PLACES.strip().splitlines():
        name, prep, uses = (p.strip() for p in line.split("|"))
        found[name] = Item(name, "place", "place", [u.strip() for u in uses.split(";")], prep)
    return dict(sorted(found.items()))


ITEMS = _load()
BY_GROUP = {g: [n for n in ITEMS if ITEMS[n].group == g] for g in ("animal", "thing", "place")}

if __name__ == "__main__":
    print(len(ITEMS), {g: len(v) for g, v in BY_GROUP.items()})
