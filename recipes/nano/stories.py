"""Small stories from the patterns of plots.py about 1 to 3 asked items.

    story = make_story(random.Random(1), ["fox", "kite", "well"])
    story.text, story.plot, story.title

The items of one story never form a withheld pair, unless the asked ones do.
"""

import random
import re
from itertools import combinations

from heldout import items_withheld
from items import BY_GROUP, ITEMS, article, past
from plots import (ANIMAL_EARLY, ANIMAL_LATE, CLOSE, OPEN, PLACE_EARLY, PLACE_LATE, PLOTS, THING_EARLY, THING_LATE)

BOYS = ("Tom Ben Sam Max Leo Finn Jack Noah Paul Hugo Oscar Ned Will Dan Theo Luke Adam Carl Eli Felix George Henry Ivan Jonas "
        "Kai Liam Mark Nico Otto Peter Quinn Ralph Simon Toby Victor Walter Yan Zeb Arthur Bruno Caleb David Edgar Fred Gus "
        "Harry Isaac Jim Karl Louis Milo Nat Owen Percy Rob Seth Tim Uri Vince Wim").split()
GIRLS = ("Mia Anna Lucy Emma Rosa Nina Ella Lily Sara Ivy Ada Clara Dora Edith Flora Greta Hanna Ida Jane Kate Lena Maya Nora "
         "Olga Polly Ruth Stella Tess Una Vera Wanda Yara Zoe Alice Bella Celia Daisy Eva Fay Grace Helen Iris June Kira Lola "
         "Molly Nell Opal Pia Rita Sofia Tara Ursula Violet Willa Agnes Betty Cora Dina").split()
GIRLS = [n for n in GIRLS if n != "Daisy"]
PET_NAMES = ("Pip Bo Dot Fizz Gigi Momo Nib Oki Pax Rolo Tiko Zaza Bibi Coco Dodo Lulu Mop Nono Puck Rudi Socks Tuff Wiz Bim "
             "Fig Hop Jojo Kiki Loki Miro").split()
PERSON_WORDS = {"he": ("boy", "lad"), "she": ("girl",)}
PERSON_ADJECTIVES = "small young shy clever brave quiet merry kind poor cheerful curious tall lonely busy".split()
ANIMAL_ADJECTIVES = "small young old shy clever brave quiet merry friendly gentle sleepy hungry lonely curious proud".split()
THING_ADJECTIVES = "little small big fine lovely good nice pretty splendid plain old new".split()
PLACE_ADJECTIVES = "old quiet small great lonely pretty famous far".split()
PRONOUNS = {"he": ("he", "him", "his", "himself"), "she": ("she", "her", "her", "herself")}
DETERMINERS = {"a", "an", "the", "his", "her", "my", "your", "its", "their"}
SPOKEN = "said cried asked shouted whispered wondered called began thought".split()
CHOICE = re.compile(r"\[([^\[\]]*)\]")
SLOT = re.compile(r"\{(\w+)\}")
COMPILED = {name: (kinds.split(), [beat.strip().splitlines() for beat in beats.split("\n/\n")])
            for name, (kinds, beats) in PLOTS.items()}
EXTRAS = {"animal": (ANIMAL_EARLY, ANIMAL_LATE), "thing": (THING_EARLY, THING_LATE), "place": (PLACE_EARLY, PLACE_LATE)}
MIN_WORDS, MAX_WORDS = 60, 125


def choose(rng, pattern):
    """The pattern with one of the choices of every [a|b], inner ones first."""
    while True:
        chosen = CHOICE.sub(lambda m: rng.choice(m.group(1).split("|")), pattern)
        if chosen == pattern:
            return chosen
        pattern = chosen


def sentence_case(text):
    """Capital letters at starts of sentences and of speech; 'he cried' after a question or a cry stays small."""
    text = re.sub(r"(^|[.!?] |(?:^|(?<= ))\")([a-z])", lambda m: m.group(1) + m.group(2).upper(), text)

    def after_speech(match):
        rest = text[match.start(2):].split()
        speaks = any(w.strip(".,") in SPOKEN or w.strip(".,") in ("begged",) for w in rest[:2])
        if match.group(1)[0] != "." and speaks:
            return match.group(0)
        return match.group(1) + match.group(2).upper()
    return re.sub(r"([.!?]\" )([a-z])", after_speech, text)


def mentions(text):
    """The story items named in a text, in order and with repeats: 'the well', 'a small kite', but not 'slept well'."""
    words = re.findall(r"[a-z]+|[.,!?\"]", text.lower())
    return [w for i, w in enumerate(words) if w in ITEMS and i and
            (words[i - 1] in DETERMINERS or (i > 1 and words[i - 2] in DETERMINERS and words[i - 1].isalpha()))]


def breaks_rule(names, asked=()):
    """Is there a withheld pair among the names, apart from pairs of the asked ones?"""
    return any(items_withheld(a, b) for a, b in combinations(sorted(set(names)), 2)
               if not (a in asked and b in asked))


class Being:
    """The hero or the friend: a person or an animal with a name, introduced at the first mention."""

    def __init__(self, rng, gender, animal=None, other=None):
        self.rng, self.gender, self.animal, self.known = rng, gender, animal, False
        names = [n for n in (PET_NAMES if animal else BOYS if gender == "he" else GIRLS) if n != (other and other.name)]
        self.name = rng.choice(names)
        self.named = not animal or rng.random() < 0.6

    def introduction(self, hero):
        self.known = True
        rng = self.rng
        if self.animal:
            phrase = self.animal if rng.random() < 0.3 else f"{rng.choice(ANIMAL_ADJECTIVES)} {self.animal}"
            return article(phrase) + (f" {rng.choice(('named', 'called'))} {self.name}" if self.named else "")
        noun = rng.choice(PERSON_WORDS[self.gender])
        if hero or rng.random() < 0.5:
            return f"{article(rng.choice(PERSON_ADJECTIVES) + ' ' + noun if rng.random() < 0.6 else noun)} {rng.choice(('named', 'called'))} {self.name}"
        return self.name

    def mention(self):
        if not self.animal:
            self.known = True
            return self.name
        if not self.known:
            return self.introduction(False)
        return self.name if self.named and self.rng.random() < 0.5 else "the " + self.animal

    def short(self):
        return self.name if self.named else "the " + self.animal


class Story:
    def __init__(self, text, plot, items):
        self.text, self.plot, self.items = text, plot, list(items)
        self.title = join_names(["the " + i for i in items], title=True)


def join_names(phrases, title=False):
    """'a fox, a kite and a well'; with title the words are capitalised: 'The Fox, the Kite and the Well'."""
    if title:
        phrases = [" ".join(w if w == "the" else w.capitalize() for w in p.split()) for p in phrases]
        phrases[0] = phrases[0][0].upper() + phrases[0][1:]
    return phrases[0] if len(phrases) == 1 else ", ".join(phrases[:-1]) + " and " + phrases[-1]


def _filler(rng, group, used, kinds=(), asked=()):
    for _ in range(200):
        name = rng.choice(BY_GROUP[group])
        if name not in used and (not kinds or ITEMS[name].kind in kinds) and not any(items_withheld(name, u) for u in used):
            return name
    return None


class Cast:
    """Who and what plays which part; fill() answers the slots of the patterns."""

    def __init__(self, rng, asked, kinds):
        self.rng = rng
        groups = {g: [a for a in asked if ITEMS[a].group == g] for g in BY_GROUP}
        animals, things, places = list(groups["animal"]), list(groups["thing"]), list(groups["place"])
        hero_animal = animals.pop(0) if animals and (len(animals) > 1 or rng.random() < 0.5) else None
        friend_animal = animals.pop(0) if animals and rng.random() < 0.8 else None
        gender = rng.choice(("he", "she"))
        self.hero = Being(rng, gender, hero_animal)
        self.friend = Being(rng, "she" if gender == "he" else "he", friend_animal, self.hero)
        used = list(asked)
        if things:
            fitting = [t for t in things if not kinds or ITEMS[t].kind in kinds]
            key = fitting[0]
            things.remove(key)
        else:
            key = _filler(rng, "thing", used, kinds)
            used.append(key)
        place = places.pop(0) if places else _filler(rng, "place", used)
        self.key, self.place = key, place
        self.use, self.do = rng.choice(ITEMS[key].uses), rng.choice(ITEMS[place].uses)
        adjective = lambda words, p: rng.choice(words) + " " if rng.random() < p else ""
        self.intro = {"K": article(adjective(THING_ADJECTIVES, 0.6) + key),
                      "P": article(adjective(PLACE_ADJECTIVES, 0.5) + place)}
        self.extras = []
        for name in places + things + animals:
            group = ITEMS[name].group
            words = {"animal": ANIMAL_ADJECTIVES, "thing": THING_ADJECTIVES, "place": PLACE_ADJECTIVES}[group]
            uses = rng.sample(ITEMS[name].uses, 2) if group == "animal" else [rng.choice(ITEMS[name].uses)] * 4
            self.extras.append((name, group, article(adjective(words, 0.5) + name), uses))
        self.extra = None

    def extra_slot(self, name):
        """Slots of a further animal, thing or place; self.extra says which."""
        item, group, intro, uses = self.extra
        if name in ("aA", "aT", "aQ"):
            return intro
        if name in ("A0", "T0"):
            return item
        if name == "actA":
            return uses.pop()
        at = f"{ITEMS[item].prep} the {item}"
        return {"Q": f"the {item}", "toQ": f"to the {item}", "atQ": at, "doQ": uses[0], "didQ": past(uses[0]),
                "useT": uses[0].replace("~", "the " + item), "usedT": past(uses[0]).replace("~", "the " + item)}[name]

    def slot(self, name):
        if name in ("he", "him", "his", "himself"):
            return PRONOUNS[self.hero.gender][("he", "him", "his", "himself").index(name)]
        if name in ("she", "her", "hers"):
            return PRONOUNS[self.friend.gender][("she", "her", "hers").index(name)]
        if name == "aH":
            return self.hero.introduction(True) if not self.hero.known else self.hero.mention()
        if name == "H":
            return self.hero.mention()
        if name == "aF":
            return self.friend.introduction(False) if not self.friend.known else self.friend.mention()
        if name == "F":
            return self.friend.mention()
        if name == "aF1":
            return "a good friend"
        simple = {"aK": self.intro["K"], "K": "the " + self.key, "K0": "the " + self.key, "aK1": article(self.key),
                  "useK": self.use.replace("~", "the " + self.key), "usedK": past(self.use).replace("~", "the " + self.key),
                  "aP": self.intro["P"], "P": "the " + self.place, "atP": f"{ITEMS[self.place].prep} the {self.place}",
                  "toP": f"to the {self.place}", "doP": self.do, "didP": past(self.do)}
        if name in simple:
            return simple[name]
        return self.extra_slot(name)

    def fill(self, pattern):
        text = choose(self.rng, pattern)
        text = re.sub(r"^His\b|^Her\b", lambda m: PRONOUNS[self.hero.gender][2].capitalize(), text)
        if text.startswith('"') and "{he}" in text and not self.hero.known:
            text = text.replace("{he}", "{H}", 1)
        return SLOT.sub(lambda m: self.slot(m.group(1)), text)


def attempt(rng, asked):
    things = [a for a in asked if ITEMS[a].group == "thing"]
    plots = [p for p, (kinds, _) in COMPILED.items()
             if not things or not kinds or any(ITEMS[t].kind in kinds for t in things)]
    plot = rng.choice(plots)
    kinds, beats = COMPILED[plot]
    cast = Cast(rng, asked, kinds)
    early, late = [], []
    for extra in cast.extras:
        first, second = EXTRAS[extra[1]]
        early.append((rng.choice(first), extra))
        late.append((rng.choice(second), extra))
    parts = [(rng.choice(OPEN), None), (rng.choice(beats[0]), None)] + early
    parts += [(rng.choice(beat), None) for beat in beats[1:]] + late + [(rng.choice(CLOSE), None)]
    filled = []
    for pattern, extra in parts:
        cast.extra = extra
        filled.append(sentence_case(cast.fill(pattern)))
    text = " ".join(filled)
    return Story(text, plot, asked)


def acceptable(story, asked, rng):
    named = mentions(story.text)
    words = len(story.text.split())
    if not MIN_WORDS <= words <= MAX_WORDS or any(a not in named for a in asked) or breaks_rule(named, asked):
        return False
    early = set(mentions(" ".join(story.text.split()[:words * 2 // 3])))
    return all(a in early for a in asked) and (rng.random() < 0.2 or all(named.count(a) > 1 for a in asked))


def make_story(rng, asked):
    for _ in range(300):
        story = attempt(rng, asked)
        if story and acceptable(story, asked, rng):
            return story
    raise RuntimeError(f"no story for {asked}")


def pick_items(rng, held_out=False):
    """1 to 3 items whose pairs are all allowed, or (two or three then) all withheld."""
    count = rng.choice((2, 3, 3) if held_out else (1, 2, 2, 3, 3, 3))
    while True:
        asked = [rng.choice(BY_GROUP[rng.choice(("animal", "thing", "thing", "place"))]) for _ in range(count)]
        if len(set(asked)) < count or sum(ITEMS[a].group == "place" for a in asked) > 2:
            continue
        if all(items_withheld(a, b) == held_out for a, b in combinations(asked, 2)):
            return asked


def diversity(count, seed=5):
    """Prints how varied the stories are."""
    rng = random.Random(seed)
    sentences, seen, grams, repeated, total, words = {}, set(), set(), 0, 0, 0
    for n in range(count):
        text = make_story(rng, pick_items(rng)).text
        split = re.findall(r"[^.!?]+[.!?]+\"?", text)
        for s in split:
            sentences[s.strip()] = sentences.get(s.strip(), 0) + 1
        tokens = text.split()
        words += len(tokens)
        mine = {tuple(tokens[i:i + 8]) for i in range(len(tokens) - 7)}
        if n >= count * 9 // 10:
            repeated += len(mine & grams)
            total += len(mine)
        else:
            grams |= mine
    every = sum(sentences.values())
    print(f"{count} stories, {words / count:.1f} words each; {every} sentences, {len(sentences)} distinct "
          f"({100 * len(sentences) / every:.1f} %); patterns "
          f"{sum(len(b) for _, beats in COMPILED.values() for b in beats) + len(OPEN) + len(CLOSE)}; of the 8-word runs of the last "
          f"tenth {100 * repeated / total:.1f} % stand in the others")


if __name__ == "__main__":
    import sys
    if len(sys.argv) > 1 and sys.argv[1] == "--diversity":
        diversity(int(sys.argv[2]))
    else:
        rng = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
        for _ in range(10):
            story = make_story(rng, pick_items(rng))
            print(f"[{story.plot}] {story.title}\n{story.text}\n")
