"""Word lists of the conversations. Data only."""

TOPICS = """tide weather price recipe ticket bus train flight ferry tram tide wind rain snow sunrise sunset moon star planet map
route distance road traffic bridge harbour hotel room table menu meal soup drink cake bread fruit cheese shop store market stock
order parcel letter stamp bill invoice tax loan bank account balance rate coin salary budget job task meeting event holiday
birthday calendar alarm timer note list poem song lyric album concert film show book page author chapter word rhyme synonym
spelling grammar language flag capital country city village river lake mountain island forest park garden flower tree plant seed
crop farm animal bird fish insect breed pet vet doctor nurse clinic medicine dose allergy symptom heart sleep step workout sport
team player score match league race medal game puzzle riddle joke quote fact history museum painting statue tower castle school
lesson teacher grade exam course library lab sample metal mineral gas battery engine car bicycle tyre boat ship truck fuel charger
phone number email address contact photo video camera screen printer file folder disk server website password log error version
robot sensor lamp door window heater oven fridge washer garage fence alarm key lock colour shape size weight height width depth
speed pressure temperature humidity noise light power voltage signal channel radio station news headline storm flood fire quake
permit licence visa passport vote law court police crime guard rescue shelter queue seat gate platform luggage locker""".split()

PARAMETERS = """city town place country region street district village harbour port station stop line gate hotel room floor
table shop store market brand product model item part code number key title name author artist song album film book page chapter
word phrase letter text topic subject keyword question language person friend player team club league coach teacher student
class school course grade date day month year week hour minute time start end duration amount count total limit quantity price
cost budget currency coin unit size width height depth length weight volume speed power level grade score age colour shape style
material metal plant flower tree seed animal bird fish breed pet river lake mountain island beach road route train bus ship boat
car engine fuel dish meal fruit drink spice recipe sport game device sensor lamp door window camera screen file folder server
user owner group order parcel ticket seat zone sector block channel signal tag label mode kind category""".split()

NUMBER_PARAMETERS = frozenset("number page chapter grade year week hour minute duration amount count total limit quantity price cost "
                              "budget size width height depth length weight volume speed power level score age floor room".split())

VERBS = "get find look_up fetch show check read search give tell query pull".split()
RESULT_WORDS = """high low open closed good bad fine late early full empty warm cold hot dry wet calm strong weak red blue green
yellow white black ready busy free lost safe new old big small fast slow quiet loud north south east west""".split()
VALUE_WORDS = """red blue green yellow silver golden apple pear cherry melon maple cedar birch willow amber coral pearl ruby falcon
raven heron otter badger lynx tiger comet meteor orbit rocket Monday Tuesday Wednesday Thursday Friday Saturday Sunday January
March April June July August October winter spring summer autumn soup salad bread rice honey ginger pepper cotton linen marble
granite copper bronze violin cello tango waltz chess hockey tennis rowing English French Spanish Polish Paris London Rome Oslo
Vienna Madrid Lima Cairo Delhi Kyoto""".split()

ONSETS = "b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sh sk sl sn sp st t th tr v w y z".split()
NUCLEI = "a e i o u ai ea ee oa oo ou a e i o u".split()
CODAS = "b ck d f g l ll m n nd ng nt p r rd rk rn s sh st t th x l n r m".split()

OBJECTS = """lamp kite key ball book cup hat coat drum bell rope basket bucket clock coin map letter ring scarf spoon plate mirror
candle broom box jar pen pencil flute doll robot umbrella bag shoe glove blanket pillow hammer lantern photo watch""".split()
LOCATIONS = """kitchen:in garden:in cellar:in attic:in barn:in shed:in garage:in hall:in bedroom:in office:in library:in cupboard:in
drawer:in box:in car:in table:on shelf:on chair:on bench:on roof:on stove:on bed:under sofa:under tree:under desk:under
door:behind fence:behind curtain:behind window:by gate:by""".split()
COLOURS = "red blue green yellow black white brown pink purple grey orange golden".split()
PLURALS = """apples pears books coins shells stones cups hats stamps marbles cards eggs hens goats sheep cows cats dogs birds pens
buttons candles flowers cakes balls kites keys boxes""".split()
FOODS = "soup rice bread cheese cake honey fish pasta salad plums apples pears beans corn pie tea milk cocoa jam nuts".split()
TOWNS = """Bellmoor Oakford Rivers Milton Ashby Corley Dunmore Elmwood Farley Granton Hilltown Ivybridge Kelby Larkhill Marwick
Norton Oldham Penrose Redcliff Stanton Thornby Upton Westley Yarrow""".split()
JOBS = "baker farmer teacher doctor painter sailor singer miller tailor driver nurse builder gardener cook pilot writer".split()

PRIVATE = """What is my name?|your name
What did I eat today?|what you ate today
How old am I?|how old you are
Where do I live?|where you live
What is my favourite colour?|what your favourite colour is
What is in my pocket?|what is in your pocket
What is my phone number?|your phone number
What did I dream last night?|what you dreamed last night
Who is my best friend?|who your best friend is
What is the name of my dog?|the name of your dog
What am I thinking of?|what you are thinking of
Where did I put my keys?|where you put your keys
What is my mother called?|what your mother is called
When is my birthday?|when your birthday is
How tall am I?|how tall you are
What colour is my coat?|what colour your coat is
What is my password?|your password
Which shoes am I wearing?|which shoes you are wearing
What did my teacher say?|what your teacher said
How many coins do I have?|how many coins you have
Who called me this morning?|who called you this morning
What is my house number?|your house number
What time is it now?|what time it is
What is the weather right now?|what the weather is right now
What will happen tomorrow?|what will happen tomorrow
Who will win the race next week?|who will win the race next week
Which number will come up next?|which number will come up next
What is behind my door?|what is behind your door
Where is my brother?|where your brother is
What is my sister doing?|what your sister is doing""".splitlines()

MADE_UP = """Who is {X} {Y}?|who {X} {Y} is
What is the capital of {X}?|what the capital of {X} is
Where is the town of {X}?|where the town of {X} is
How tall is {X} {Y}?|how tall {X} {Y} is
When was {X} {Y} born?|when {X} {Y} was born
What is a {x}?|what a {x} is
What does {x} mean?|what {x} means
How many people live in {X}?|how many people live in {X}
Who wrote the book {X}?|who wrote the book {X}
What colour is a {x}?|what colour a {x} is
Who is the king of {X}?|who the king of {X} is
What is {X} {Y} famous for?|what {X} {Y} is famous for
How old is {X} {Y}?|how old {X} {Y} is
Which river runs through {X}?|which river runs through {X}""".splitlines()

# ask | answer | what is looked for
TALK = """Hello!;Hi!;Hello there!;Good morning!;Good evening!;Hey!;Hi there!;Hello, how do you do?|Hello! What can I do for you?|hello
Who are you?;What are you?;What is your name?;Tell me who you are.;Introduce yourself.;Are you a person?;Who am I talking to?;What is this?|I am k3 nano, a small model. I tell stories, work out sums, answer questions on a short text and call tools.|k3 nano
What can you do?;How can you help me?;What are you good at?;What can I ask you?;Can you help me?|I can tell small stories, add and subtract, sort numbers, answer questions on a short text and call tools.|stories
Thank you!;Thanks!;Thanks a lot.;Thank you very much.;That was nice, thanks.;Great, thank you!|You are welcome!|welcome
Stop.;That is enough.;Please stop.;No more, please.;You can stop now.;Be quiet, please.|All right, I stop here.|stop
Goodbye!;Bye!;See you later.;Good night!;Bye for now!;I have to go now.|Goodbye! Come back soon.|goodbye
How are you?;How are you today?;Are you well?;How do you feel?;Is all well with you?|I am a small program, so I do not feel, but all is in order.|program
Are you clever?;Do you know everything?;Are you very smart?;Do you make mistakes?;Are you always right?|No. I am a very small model and I make mistakes.|mistakes
I am sad.;I feel sad today.;I had a bad day.;I am so tired.;I feel lonely.|I am sorry to hear that. Shall I tell you a story?|sorry
I am happy.;I had a good day.;I feel great!;Today was a nice day.;I won a prize!|I am glad to hear that!|glad
Who made you?;Who built you?;Where do you come from?;How were you made?|I was trained with the k3 program on small stories and sums.|k3""".splitlines()

# what is asked: pairs of words
FACTS = {
    "What is the opposite of {0}?": ("hot cold;big small;up down;left right;day night;fast slow;old young;happy sad;open closed;full "
                                     "empty;light dark;hard soft;wet dry;early late;rich poor;loud quiet;thick thin;high low;"
                                     "strong weak;clean dirty;long short;first last;in out;near far"),
    "What day comes after {0}?": ("Monday Tuesday;Tuesday Wednesday;Wednesday Thursday;Thursday Friday;Friday Saturday;"
                                  "Saturday Sunday;Sunday Monday"),
    "What month comes after {0}?": ("January February;February March;March April;April May;May June;June July;July August;"
                                    "August September;September October;October November;November December;December January"),
    "What sound does a {0} make?": "dog woof;cat meow;cow moo;sheep baa;duck quack;pig oink;hen cluck;owl whoo;bee buzz;frog croak",
    "What colour is {0}?": "grass green;snow white;coal black;blood red;milk white;butter yellow;honey golden;ink blue",
    "What do you call a young {0}?": "dog puppy;cat kitten;sheep lamb;cow calf;horse foal;goat kid;hen chick;duck duckling;bear cub",
    "What number comes after {0}?": ("one two;two three;three four;four five;five six;six seven;seven eight;eight nine;nine ten;"
                                     "ten eleven;eleven twelve"),
}
