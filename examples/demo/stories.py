"""What does the demo model read?  Little English of our own making, drawn from templates by a seed.

Every kind of text trains something that interpretability demonstrations look for: indirect objects
(name movers), agreement in number across a distractor, facts (capitals, colours, opposites, kinds),
repeated random lists (induction), and stories in which things change hands and places (tracking).
A document is one line: a story, or a few sentences of mixed kinds.
"""

import random
from collections.abc import Callable, Iterator

import vocabulary as words

Random = random.Random


def indirect_object(rng: Random) -> str:
    """Two people, one of them gives something; who is left over gets it.

    ``When Mary and John went to the store, John gave a drink to Mary.``
    """
    one, other = rng.sample(words.NAMES, 2)
    giver, taker = rng.sample((one, other), 2)
    place, thing, gave = (
        rng.choice(words.PLACES), rng.choice(words.THINGS), rng.choice(words.GIVING),
    )  # fmt: skip
    went = rng.choice(words.GOING)
    opening = rng.choice(
        (
            f"When {one} and {other} {went} to the {place},",
            f"After {one} and {other} {went} to the {place},",
            f"While {one} and {other} were at the {place},",
            f"Then {one} and {other} {went} to the {place}, and",
            f"{one} and {other} had a nice day at the {place}, and",
        )
    )
    article = "an" if thing[0] in "aeiou" else "a"
    return f"{opening} {giver} {gave} {article} {thing} to {taker}."


def agreement(rng: Random) -> str:
    """A verb that agrees with its noun, not with the nearer one.

    ``The keys near the old table are red.``
    """
    noun, distractor = rng.sample(words.NOUNS, 2)
    number, other_number = rng.randrange(2), rng.randrange(2)
    subject = noun[number]
    if rng.random() < 0.4:
        subject = f"{rng.choice(words.ADJECTIVES)} {subject}"
    if rng.random() < 0.8:
        between = distractor[other_number]
        if rng.random() < 0.4:
            between = f"{rng.choice(words.ADJECTIVES)} {between}"
        subject = f"{subject} {rng.choice(words.NEAR)} the {between}"
    verb = rng.choice(words.NUMBER_VERBS)[number]
    return f"The {subject} {verb} {rng.choice(words.ADJECTIVES)}."


def fact(rng: Random) -> str:
    """Something that is always so.

    ``The capital of France is Paris.``
    """
    kind = rng.randrange(6)
    if kind == 0:
        country, city = rng.choice(list(words.CAPITALS.items()))
        return rng.choice(
            (
                f"The capital of {country} is {city}.",
                f"{city} is the capital of {country}.",
                f"{rng.choice(words.NAMES)} went to {country} and saw {city}.",
            )
        )
    if kind == 1:
        thing, colour = rng.choice(list(words.COLOURS.items()))
        return rng.choice(
            (f"The colour of {thing} is {colour}.", f"We know that {thing} is {colour}.")
        )
    if kind == 2:
        one, other = rng.sample(rng.choice(list(words.OPPOSITES.items())), 2)
        return rng.choice(
            (f"The opposite of {one} is {other}.", f"It is not {one}, it is {other}.")
        )
    if kind == 3:
        thing, sort = rng.choice(list(words.KINDS.items()))
        return f"{_article(thing)} {thing} is {_article(sort).lower()} {sort}."
    if kind == 4:
        day = rng.randrange(7)
        return f"The day after {words.DAYS[day]} is {words.DAYS[(day + 1) % 7]}."
    one, other = rng.randrange(7), rng.randrange(7)
    total = words.NUMBERS[one + other]
    return f"{words.NUMBERS[one]} plus {words.NUMBERS[other]} is {total}."


def _article(word: str) -> str:
    return "An" if word[0] in "aeiou" else "A"


def repeated_list(rng: Random) -> str:
    """Random words, and the same words again.

    ``cup river dog saw, cup river dog saw.``
    """
    chosen = rng.sample(words.LIST_WORDS, rng.randint(4, 9))
    times = 2 if len(chosen) > 5 else rng.randint(2, 3)
    return ", ".join([" ".join(chosen)] * times) + "."


def quotation(rng: Random) -> str:
    """What one person says, another repeats: copying a span that is not at the start."""
    one, other = rng.sample(words.NAMES, 2)
    thing = f"{rng.choice(words.ADJECTIVES)} {rng.choice(words.THINGS)}"
    said = f"the {thing} is in the {rng.choice(words.PLACES)}"
    return f'{one} said that {said}. "I know that {said}," said {other}.'


def story(rng: Random) -> str:
    """People go about, carry things, give them away; at the end, who has what and where?"""
    people = rng.sample(words.NAMES, rng.randint(2, 3))
    things = rng.sample(words.THINGS, 2)
    place = dict(zip(people, rng.choices(words.PLACES, k=len(people)), strict=True))
    holder: dict[str, str] = {}
    lines = [f"{person} was at the {place[person]}." for person in people]
    for _ in range(rng.randint(3, 6)):
        person, thing = rng.choice(people), rng.choice(things)
        if thing not in holder:
            holder[thing] = person
            lines.append(f"{person} took the {thing}.")
        elif rng.random() < 0.5:
            place[person] = rng.choice(words.PLACES)
            lines.append(f"{person} {rng.choice(words.GOING)} to the {place[person]}.")
        else:
            giver = holder[thing]
            taker = rng.choice([other for other in people if other != giver])
            holder[thing] = taker
            lines.append(f"{giver} {rng.choice(words.GIVING)} the {thing} to {taker}.")
    lines.extend(_questions(rng, place, holder))
    return " ".join(lines)


def _questions(rng: Random, place: dict[str, str], holder: dict[str, str]) -> list[str]:
    asked = [f"Who has the {thing}? {person}." for thing, person in holder.items()]
    asked += [f"Where is {person}? {person} is at the {where}." for person, where in place.items()]
    asked += [f"Where is the {thing}? The {thing} is at the {place[person]}."
              for thing, person in holder.items()]  # fmt: skip
    return rng.sample(asked, min(3, len(asked)))


SENTENCES: tuple[tuple[Callable[[Random], str], int], ...] = (
    (indirect_object, 5),
    (agreement, 3),
    (fact, 5),
    (repeated_list, 2),
    (quotation, 1),
)
"""Kinds of sentences and how often each is drawn."""


def document(rng: Random) -> str:
    """One line of text: a story, or sentences of mixed kinds."""
    if rng.random() < 0.25:
        return story(rng)
    makers, weights = zip(*SENTENCES, strict=True)
    chosen = rng.choices(makers, weights, k=rng.randint(2, 6))
    return " ".join(make(rng) for make in chosen)


def documents(seed: int) -> Iterator[str]:
    """Documents without end; the same seed gives the same ones."""
    rng = Random(seed)
    while True:
        yield document(rng)
