"""Prompts made by combining lists: a few thousand from a few hundred lines, the same ones for the same seed.

Subjects are split once: every eighth goes to the held-out set and no training prompt uses it, so that agreement
is measured on answers about things that the drafter was never trained on.
"""

from __future__ import annotations

import random

KINDS = ("chat", "code", "summary", "list")


def cut(text: str) -> list[str]:
    """The items of a list that runs over several lines, with a semicolon after each but the last."""
    return text.replace("\n", " ").split("; ")


SUBJECTS = cut("""photosynthesis; black holes; the water cycle; volcanoes; plate tectonics; vaccines; antibiotics;
the human heart; sleep; memory; dreams; gravity; magnetism; electricity; batteries; solar panels; wind turbines;
nuclear power; climate change; recycling; coral reefs; rainforests; deserts; glaciers; hurricanes; lightning;
rainbows; the moon; Mars; Jupiter; comets; telescopes; microscopes; DNA; evolution; bacteria; viruses; fungi; bees;
ants; butterflies; spiders; whales; dolphins; sharks; octopuses; elephants; lions; wolves; dogs; cats; horses;
chickens; owls; penguins; dinosaurs; mammoths; ancient Egypt; ancient Greece; the Roman Empire; the Middle Ages; the
Renaissance; the French Revolution; the Industrial Revolution; the First World War; the Cold War; the Silk Road; the
Vikings; the Aztecs; the printing press; the steam engine; bicycles; cars; trains; airplanes; ships; submarines;
rockets; bridges; skyscrapers; lighthouses; windmills; clocks; calendars; maps; compasses; money; banks; inflation;
taxes; insurance; the stock market; budgeting; saving money; small businesses; marketing; job interviews; resumes;
leadership; teamwork; time management; public speaking; negotiation; email etiquette; remote work; studying;
learning languages; reading; writing essays; poetry; novels; short stories; theatre; film; photography; painting;
sculpture; architecture; jazz; classical music; guitars; pianos; drums; singing; dancing; ballet; soccer;
basketball; tennis; swimming; running; yoga; hiking; camping; fishing; climbing; skiing; chess; board games; video
games; puzzles; cooking; baking bread; pasta; pizza; sushi; soup; salads; chocolate; coffee; tea; cheese; rice;
spices; vegetables; fruit; vitamins; protein; healthy eating; weight loss; exercise; stress; anxiety; meditation;
friendship; marriage; parenting; babies; teenagers; schools; teachers; universities; homework; libraries; museums;
gardening; roses; tomatoes; trees; compost; houseplants; lawn care; interior design; cleaning; laundry; moving
house; home repair; pets; travel; Paris; London; Tokyo; New York; Rome; Cairo; Sydney; Brazil; India; China; Japan;
Canada; Mexico; Kenya; Iceland; hotels; airports; road trips; democracy; elections; constitutions; human rights;
courts; police; firefighters; doctors; nurses; farmers; engineers; pilots; journalists; newspapers; television;
radio; the internet; social media; smartphones; computers; programming; algorithms; databases; encryption;
passwords; artificial intelligence; machine learning; neural networks; robots; drones; 3D printing; virtual reality;
cloud computing; open source software; operating systems; web browsers; search engines; spreadsheets; algebra;
geometry; calculus; statistics; probability; prime numbers; logic; philosophy; ethics; religion; mythology;
folklore; fairy tales; superheroes; ghosts; pirates; knights; castles; kings and queens; toys; holidays; birthdays;
weddings; festivals; fashion; shoes; jewelry; perfume; hair care; skin care; dentists; glasses; hearing; first aid;
earthquakes; floods; wildfires; rivers; oceans; lakes; islands; mountains; caves; soil; rocks; gold; iron; plastic;
glass; paper; cotton; wool; atoms; molecules; acids and bases; light; sound; heat; energy; friction; motion; time;
space travel; satellites; the solar system; galaxies""")

CHAT = """What is {s}?|Explain {s} to a ten-year-old.|Tell me something interesting about {s}.|Why is {s} important?|
How has {s} changed over the last hundred years?|I know nothing about {s}. Where should I start?|
Can you explain {s} in simple terms?|Write a short story about {s}.|Write a poem about {s}.|Write a short essay on {s}.|
What are common misunderstandings about {s}?|What would the world be like without {s}?|
Write a friendly email to a colleague about {s}.|Give me advice about {s}.|What is the difference between {s} and {t}?|
How are {s} and {t} related?|Write a dialogue between two friends who talk about {s}.|Hi! Can we talk about {s}?|
I have to give a talk on {s}. Help me to write the opening.|Write a blog post about {s}.|Describe {s} in one paragraph.|
What is the history of {s}?|Is {s} better than {t}? Why?|How does {s} affect daily life?|
Write a product description of something that has to do with {s}.|Teach me about {s}.|
Write an argument for and against {s}."""

LIST = """List ten facts about {s}.|Give me five tips on {s}.|What are the pros and cons of {s}?|
List the most important things to know about {s}.|Give me a step by step guide to {s}.|
Name five books or topics for someone interested in {s}.|Suggest 5 titles for an article on {s}.|
Make a checklist for {s}.|List seven words that have to do with {s}, with a short meaning of each.|
What are the main types of {s}?|Write an outline of a lesson on {s}.|Give me 10 questions for a quiz about {s}.|
List three ways in which {s} and {t} are alike.|Make a table that compares {s} and {t}.|
Give me a weekly plan to learn about {s}.|List the key dates in the history of {s}.|
What are five mistakes people make with {s}?|Brainstorm eight ideas for a project on {s}."""

TASKS = cut("""reverses a string; checks whether a number is prime; returns the n-th Fibonacci number; computes a
factorial; sorts a list of numbers; finds the largest item of a list; removes duplicates from a list; counts the
words of a text; counts the vowels of a string; checks whether a word is a palindrome; merges two sorted lists; does
a binary search; reads a file line by line; writes a list to a file; parses a CSV file; converts Celsius to
Fahrenheit; computes the average of a list; computes the median; flattens a nested list; finds the common items of
two lists; computes the greatest common divisor; checks whether two strings are anagrams; generates a random
password; validates an email address; counts how often each character occurs; rotates a list; transposes a matrix;
multiplies two matrices; sums the digits of a number; converts a number to binary; finds missing numbers; implements
a stack; implements a queue; implements a linked list; implements a binary tree; walks a graph breadth first; caches
results of a function; measures the time of a function; downloads a web page; parses JSON; formats a date;
capitalises every word; splits a list into chunks; groups items by a key; draws a triangle of stars; simulates a
dice roll; plays rock, paper, scissors; keeps a bank account; converts Roman numerals; solves FizzBuzz; checks
brackets for balance; finds the longest word; computes compound interest; sorts a dictionary by value; swaps two
variables; finds the second largest number; checks leap years; prints a multiplication table; encrypts text with a
Caesar cipher; removes spaces; computes the power of a number; finds all even numbers; finds the longest common
prefix; counts lines of a file; zips two lists into a dictionary; computes a moving average; finds the shortest path""")

LANGUAGES = ("Python", "Python", "Python", "Python", "JavaScript", "Java", "C", "C++", "Rust", "Go")

CODE = """Write a {l} function that {k}.|Write a {l} program that {k}.|How do I write code in {l} that {k}?|
Write a {l} function that {k}, with comments.|Write a {l} function that {k} and a test for it.|
Show me a simple {l} example that {k} and explain it.|Write a {l} class that {k}.|
Complete this {l} code so that it {k}:|Write efficient {l} code that {k} and {m}.|
Explain step by step how a {l} function that {k} works."""

SUMMARY = """Summarize the following text:\n\n{p}|Summarize this in one sentence:\n\n{p}|
{p}\n\nSummarize the text above.|Give me a short summary of this text.\n\n{p}|
What are the main points of the following text?\n\n{p}|Rewrite the following text in simpler words:\n\n{p}|
Write a title and a summary for this text:\n\n{p}|Read this text and list its key points:\n\n{p}|
Text: {p}\n\nWhat is this text about?|Correct and improve the following text:\n\n{p}"""


# Texts for the held-out summaries, about held-out things; training summaries take the target's own answers.
HELD_PASSAGES = (
    "The village of Aldermoor lost its only bus line in March. Since then, volunteers drive people to the hospital "
    "and to the market twice a week. The council pays for the fuel, but the drivers work for nothing. Some residents "
    "say that the service is better than the old one, because the cars stop at their doors. Others worry about what "
    "will happen when the volunteers grow older.",
    "Copper conducts electricity better than almost any other metal, and it is easy to draw into thin wires. For that "
    "reason most cables in houses are made of it. In recent years the price has risen sharply, since electric cars "
    "need four times as much copper as cars with a petrol engine. Mines in Chile and Peru cannot keep up, and "
    "recycling now covers about a third of the demand.",
    "Maria started her bakery with a loan of two thousand euros and an oven that she had bought from a closed "
    "restaurant. In the first month she sold forty loaves a day. Today she employs nine people and delivers to thirty "
    "cafes. She says that the hardest part was not the baking but the bookkeeping, and that she would hire an "
    "accountant much earlier if she had to start again.",
    "A team of biologists has counted the otters along the river for the fifth year in a row. They found sixty-one "
    "animals, twice as many as at the start of the study. The biologists believe that cleaner water and fewer motor "
    "boats explain the growth. They also warn that a planned dam would cut the river in two, and that young otters "
    "would then have nowhere to go.",
    "The city library will open on Sundays from September on. Readers will be able to borrow and return books at "
    "machines, while a small staff answers questions until four in the afternoon. The reading room stays open until "
    "eight. The change follows a survey in which most students said that the weekend was the only time when they "
    "could study without interruption.",
    "Early typewriters placed the letters in alphabetical order. When people typed quickly, the metal arms of "
    "neighbouring letters often hit each other and jammed. The inventor therefore moved common pairs of letters "
    "apart. The arrangement that came out of it is still used on keyboards today, although there have been no metal "
    "arms to jam for more than fifty years.",
    "On Saturday the small team from the north won the final by three goals to two, after being two goals behind at "
    "the break. The coach had changed four players and told the others to attack on the left side. The winning goal "
    "came in the last minute from a seventeen-year-old who had never played in the first team before. The club has "
    "not won a title in forty years.",
    "Many offices keep the temperature at twenty-one degrees all day. Researchers have now tested whether this is "
    "sensible. In their study, people made fewer mistakes at twenty-three degrees, but they felt more tired in the "
    "afternoon. The researchers suggest warm mornings and cooler afternoons. They add that fresh air mattered more "
    "than temperature in all of their tests.",
)


def split(items: list[str], held: bool) -> list[str]:
    """Every eighth item is held out."""
    return [x for i, x in enumerate(items) if (i % 8 == 5) == held]


def templates(text: str) -> list[str]:
    """The forms of a list that is separated by bars."""
    return [t.strip() for t in text.replace("|\n", "|").split("|")]


class Prompts:
    """Prompt number `i` of the training set, or of the held-out set.

    Args:
        passages: texts for summaries; the held-out set has its own.
        held: whether it is the held-out set.
        seed: another one gives other prompts.
    """

    def __init__(self, passages: list[str], held: bool = False, seed: int = 0) -> None:
        self.passages, self.held, self.seed = list(HELD_PASSAGES) if held else passages, held, seed
        self.subjects, self.tasks = split(SUBJECTS, held), split(TASKS, held)

    def __call__(self, i: int) -> tuple[str, str]:
        """Kind and text."""
        rng = random.Random(f"{self.seed} {self.held} {i}")
        kind = KINDS[i % 4] if self.held else rng.choices(KINDS, (35, 22, 18, 25))[0]
        if kind == "summary" and not self.passages:
            kind = "chat"
        return kind, self._fill(kind, rng)

    def text(self, kind: str, i: int) -> str:
        """Prompt number `i` of one kind."""
        return self._fill(kind, random.Random(f"{self.seed} {self.held} {kind} {i}"))

    def _fill(self, kind: str, rng: random.Random) -> str:
        form = rng.choice(templates({"chat": CHAT, "code": CODE, "summary": SUMMARY, "list": LIST}[kind]))
        (s, t), (k, m) = rng.sample(self.subjects, 2), rng.sample(self.tasks, 2)
        passage = rng.choice(self.passages) if self.passages else ""
        text = form.replace("{s}", s).replace("{t}", t).replace("{k}", k).replace("{m}", m)
        return text.replace("{l}", rng.choice(LANGUAGES)).replace("{p}", passage)
