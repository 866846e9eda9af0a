"""The sentence patterns of the stories. Data only.

[a|b] chooses; {H} is the hero, {F} the friend, {K} the thing it is about, {P} the place (with {at} before it), {T} a
second thing. {he} {him} {his} belong to the hero, {she} {her} {hers} to the friend ({hers} is the possessive);
a capital first letter of a name in braces only says the word is a noun, sentences are capitalised afterwards.
{aK} is "a small kite"; {useK} "fly the kite", {usedK} its past; {doP} and {didP} what one does at the place.
"""

OPEN = """
[One|Early one|One fine|One cold|One bright] [morning|evening|afternoon], {aH} [went|walked|came|hurried|wandered] {toP}.
{aH} [lived|had a home] [not far from|close to|a short walk from|just behind] {aP}.
[Once|Long ago|Last spring|Last summer|One winter], {aH} [spent|passed] [a whole day|every morning|many hours|a long week] {atP}.
[On Monday|On Tuesday|On Friday|On Sunday|On a windy day|On a warm day], {aH} [set out for|walked slowly to|ran all the way to] {aP}.
There was once {aH} who [loved|liked] to [stay|be|play] {atP}.
[It was a|It was such a] [cold|warm|windy|quiet|sunny|foggy|clear] day, and {aH} was {atP}.
{atP}, {aH} [sat all alone|stood and waited|looked around|was busy with a song].
[Every day|Each morning|Most evenings|After supper], {aH} [came|went] {toP} to {doP}.
{aH} [had never been|had always wanted to go] {toP}, so [today was a great day|today {he} got up early].
The [sun|wind|air] was [soft|warm|gentle] when {aH} [got|came] {toP}.
"[Today I will|Now I want to|I would love to] {doP}," said {aH} [on the way|who was going] {toP}.
[In the early light|Before breakfast|Just after noon|Near sunset], {aH} [stopped|rested|arrived] {atP}.
""".strip().splitlines()

CLOSE = """
[After that|From then on|From that day on], {H} and {F} [met {atP} every day|met each week|were the best of friends|shared everything|played together as often as they could].
{H} [smiled|laughed] all the way home. It had been [a good day|a fine day|the best day of the year].
That night {H} [slept well|dreamed about {K}|lay awake and smiled], and {F} [did too|slept well too].
"[Thank you|You are a true friend|I will not forget this]," said {H}. {F} [only smiled|bowed|gave {him} a wink].
Then they {didP} [together|until dark|side by side], and [both were happy|nobody was sad any more].
[When the stars came out|When it grew dark|At sunset], the two friends [walked home|went home slowly|said goodnight], [tired but happy|warm inside|full of plans].
And [even now|to this day], {H} [keeps {K} close|tells the tale of {K}|thinks of {F} and {K}].
{H} had learned [something|a good lesson]: [a kind word is better than a loud one|friends make hard things easy|it is wise to ask for help|small steps go far|it is best to tell the truth].
"[Shall we come back|Will you come again|Can we do this again] tomorrow?" asked {F}. "[Yes|Of course|Always]!" said {H}.
At home, {H} told [everyone|the whole family|{his} mother|{his} grandfather] about {F} and {K}, and they [laughed|listened|clapped].
So [the day|it all|this tale] ended well, with {K} [safe|safe and sound|in its place] and two [happy|merry|good] friends {atP}.
{F} [hugged|thanked|looked at] {H}, and {H} [knew|felt] that [all was well|everything was right|it had been worth it].
""".strip().splitlines()

ANIMAL_EARLY = """
{aA} was there [too|as well], and it {actA}.
Nearby, {aA} [watched|listened] [quietly|with wide eyes|and waited].
On the way {he} met {aA}. The [shy|little|quiet|curious] {A0} {actA}.
{aA} [followed|came after] {him} [all the way|at a safe distance|like a shadow].
{he} said hello to {aA}, which {actA}.
Just then {aA} [came by|passed by|appeared], and {he} [stopped|smiled|waved].
""".strip().splitlines()

ANIMAL_LATE = """
The {A0} {actA}, as if it [understood|was glad too|wanted to help].
Even the {A0} [looked|seemed] [pleased|happy|surprised], and it {actA}.
"[Look at|See] the {A0}!" said {F}. [It|The {A0}] {actA}.
All this time the {A0} [stayed close|kept watch|never made a sound].
They gave the {A0} [a kind pat|some bread|something to eat], and it {actA}.
""".strip().splitlines()

THING_EARLY = """
{he} had brought {aT} [along|as well|too|from home].
{he} also [had|carried] {aT}, [a gift from {his} uncle|which was a present from {his} aunt|because one never knows].
Beside {him} was {aT}, [clean and ready|a good thing to have|never used before].
[At home|Before leaving], {he} had [packed|picked out|found] {aT}.
[His|Her] {T0} was [with {him}|there] too, [as always|as on every trip].
In the [grass|corner|sun] there was {aT}, [left by someone|all by itself].
""".strip().splitlines()

THING_LATE = """
Then {he} {usedT}, [and it helped|and that was fun|just as {he} had planned].
To [celebrate|pass the time|help], they {usedT}.
[Later|Afterwards|A little later] {F} wanted to {useT}, [and {H} said yes|so they took turns].
"[May I|Could I|Let me] {useT}?" asked {F}, [and {H} nodded|and {he} said yes].
Now the {T0} was [useful|just right|needed] [at last|too|as well]: {he} {usedT}.
""".strip().splitlines()

PLACE_EARLY = """
On the way {he} [passed|saw|came past] {aQ} and {didQ}.
First {he} stopped {atQ} and {didQ}.
{he} had already been {toQ} [that day|that morning|the day before].
The road went past {aQ}, where {he} [rested|waited|looked around] [for a minute|for a while].
""".strip().splitlines()

PLACE_LATE = """
Afterwards they went {toQ} and {didQ}.
[Later|In the end|Then] the two of them {didQ} {atQ}.
"[Let us go|Come with me|We should go] {toQ}!" said {F}, and so they {didQ}.
They took the long way home, past {Q}, and {didQ} there.
""".strip().splitlines()

# name: (kinds of thing that fit, how the plan names it, four beats)
PLOTS = {
    "lost and found": ("", """
{he} had {aK} in {his} [hands|arms|bag], and {he} [never let go of it|was very proud of it].
With {him} was {aK}, [the best thing {he} had|a birthday present|which {he} loved].
{he} had {aK} of {his} own and [liked|wanted] to {useK} there.
{his} grandmother had given {him} {aK}, and {he} took it [everywhere|along].
{he} [set down|took out] {aK}. "[Today|Now] I will {useK}," {he} said.
{he} carried {aK} and [hummed|whistled|sang] [a tune|as {he} went].
There {he} put down {aK} [to rest|for a moment] and {didP}.
{he} [was happy|felt rich], because {he} had {aK}, [shining in the light|bought that morning].
/
But when {he} [turned around|looked again|woke from a nap], {K} was gone!
[Suddenly|Then|A bit later] {he} saw that {K} was [gone|missing|not there any more].
Soon {he} [reached for|wanted to use] {K}, but it was [nowhere|not there]. "Oh no!" {he} cried.
A [strong|sudden] wind came, and after it {K} [was gone|could not be found].
{he} {didP} for so long that {he} forgot {K}. Now it was lost.
{he} looked [left and right|high and low|everywhere], but {K} [had vanished|was not to be seen].
"Where is {K0}?" {he} [asked|cried|wondered]. {he} felt [sad|cold with fear|like crying].
[An hour|A minute|A while] later, {K} was lost, and {he} [sat down|began] [and wept|to weep].
/
{aF} [saw {him}|heard {him}|came along] and [asked|said], "What is wrong?" "I have lost {K0}," said {H}.
{aF} [wanted to help|offered to help]. "Think: where did you {useK} last?" asked {F}.
[Luckily|By chance], {aF} came by. "I will [help you look|search with you]," said {F}.
{H} asked {aF} for help. They looked [under every bush|behind every stone|along the path] [together|twice].
{aF} said, "Do not [cry|worry]. Two pairs of eyes see more than one."
"Have you seen {K0}?" {H} asked {aF}. "[No|Not yet], but we can look," said {F}.
{aF} [ran up|came close]. "[Something|I saw something] is lying over there," {she} said.
Then {H} met {aF}, who [was good at finding things|had sharp eyes|knew every corner there].
/
And there it was: {K} had [rolled|slipped|fallen] [under a bush|behind a bench|into the tall weeds]!
In the end {F} [found|spotted|saw] {K} [in the mud|under some straw|behind a post]. [Nothing was broken|It was only a bit dusty].
After [a long search|an hour], {F} [held up|brought back] {K}. {H} [jumped for joy|cheered|could not speak for joy].
"[Here it is|I have it|I found it]!" called {F}, and {she} gave {K} back to {H}.
At last they found {K} [right where they had started|close by|in a dry spot], and {H} [laughed with relief|sighed|danced].
{F} looked [once more|a second time|with care] and saw {K}. {H} [thanked {her}|shook with joy] and {usedK}.
It had been {atP} all along. {H} [held|picked up] {K} and [promised to be careful|would not let go].
{H} [looked up|looked down], and there was {K}! [They both|The two of them] laughed and {usedK}.
"""),
    "learning to share": ("", """
{he} had found {aK} [that day|by the road], and {he} wanted it all for {himself}.
{he} had {aK}, and [nobody else|no one] was allowed to touch it.
"[This|Look, this] is mine alone," said {H} and [hugged|showed] {aK}.
For {his} birthday {he} had got {aK}, and now {he} [wanted to {useK}|kept it close].
There {he} saw {aK} that [belonged to nobody|somebody had left], and {he} grabbed it [at once|quickly].
{he} had saved up for {aK}, and [today|now] it was {his} [at last|own].
{he} was [busy|happy] with {aK}: {he} {usedK} again and again.
{his} [aunt|uncle|mother] had brought {him} {aK} [from a long trip|from town].
/
Then {aF} came and [looked at|pointed at] {K}. "[May I|Can I|Could I] {useK} too?" "No!" said {H}.
{aF} wanted to {useK} as well. "[It is mine|Go away|Not now]," said {H}.
Soon {aF} came [along|near]. Both of them wanted {K}, and they [pulled|shouted|argued].
"I saw {K0} first!" said {aF}. "No, I did!" cried {H}, and they [quarrelled|grew angry].
{aF} asked for a turn, but {H} [shook {his} head|turned away|hid {K}].
{aF} watched with [sad|big|hopeful] eyes. {H} [did not look up|pretended not to see].
"[Please|Oh please], let me {useK}," [begged|asked] {aF}. {H} [said no|said nothing].
{H} would not share with {aF}, so {F} went and sat [far away|alone|in a corner].
/
But alone it was [no fun|dull|not so nice]. {H} [looked at|thought about] {F} and felt [sorry|bad|ashamed].
After a while {H} [was bored|grew tired of it]. {F} [was still waiting|looked so lonely].
{H} saw a tear on {hers} face. {he} [thought for a while|felt a pain inside|put down {K}].
Then {F} gave {H} [half of {hers} bread|a warm smile|a hand] anyway. {H} [turned red|was surprised|felt small].
An old [woman|man] said, "A thing that is shared is [twice as good|worth double]." {H} thought about that.
{H} tried to {useK} alone, but [it did not work|it was too hard|it needed two].
It was [very quiet|too quiet] now. {H} [missed|wished for] a friend.
"[What good is|Why do I want] {K0} without a friend?" {H} [asked {himself}|wondered].
/
"[Come here|I am sorry|Wait]," said {H}. "[We can share|Let us take turns|You go first]." So they {usedK} together.
{he} [went|ran] to {F} and held out {K}. "Now [it is your turn|you can have it]," {he} said.
So {H} called {F} back, and they {usedK} [in turns|together] until [supper|dark|noon].
{H} [gave|handed] {K} to {F}, and {F} [beamed|laughed|thanked {him}].
They [made a deal|shook hands]: one day {K} was with {H}, the next day with {F}.
"[Let us|We could] {useK} together," said {H}. It was [much more fun|far better] with two.
{H} [smiled|nodded] and shared {K} with {F}. [Both were glad|Now nobody was angry].
From then on {K} belonged to both, and {F} [was happy|showed {him} a new game].
"""),
    "broken and mended": ("toy music tool home", """
{he} had {aK} [with {him}|in {his} arms], and {he} [loved it|took good care of it].
[His|Her] father had made {aK} for {him}, and {he} [took it along|was proud of it].
{he} had borrowed {aK} from {his} [brother|sister|teacher] and wanted to {useK}.
There {he} took out {aK}, [old but good|shining and new], and {usedK}.
{he} carried {aK} [very carefully|under one arm|in both arms].
{he} had {aK} of {his} own. "[How nice|What fun] it is to {useK}," {he} said.
With {him} was {aK} from [{his} grandfather|a far land|the fair].
Nobody had {aK} like [his|hers], and {he} [smiled at it|took it everywhere].
/
But {he} [tripped|slipped|stumbled] on a root, and {K} [broke|cracked] [in two|with a snap].
Then {K} fell [down|to the ground|on the hard floor] with a [crash|bang|crack]. It was broken.
[Crack|Snap|Crash]! Before {he} could {useK}, it was broken.
{he} was not careful, and [soon|suddenly] {K} was broken. {H} [burst into tears|stared at it].
{he} [ran|hurried] too fast. {K} hit a wall and [broke|split].
Somebody bumped into {him}, and {K} [fell and broke|broke into two parts].
"Oh no, {K0} is broken!" {he} [cried|said]. "What [will I do|can I do] now?"
{he} wanted to {useK}, but [one part came off|it came apart] in {his} hands.
/
{aF} [heard the noise|saw it all|came to see]. "[I can help|Let me see|We can mend it]," {she} said.
{he} [took it to|showed it to] {aF}, who was [clever|good] with {hers} hands.
{aF} brought [some glue|a strong thread|some string and a pin]. "[Hold still|Hold it like this]," said {F}.
"[Can you|Could you] mend it?" {H} asked {aF}. "[I can try|Yes, if you help me]," said {F}.
{aF} [sat down beside {him}|looked at it for a long time] and [said|whispered], "This is not so bad."
{H} [was afraid to tell|told] {aF}. But {F} [was not angry|only nodded] and fetched some glue.
{aF} knew [what to do|a trick]. "[Bring me|We need] some wood and a bit of wire," {she} said.
[Luckily|By good luck], {aF} had [glue|a thread|nails] in {hers} pocket and wanted to help.
/
They worked [all day|until evening|for an hour], and then {K} was [whole|as good as new|better than before].
Bit by bit they put {K} together. [At last|In the end] it [held|was mended], and {H} {usedK}.
{F} [pressed|tied|held] the parts together, {H} [waited|helped|counted to ten], and {K} was mended.
Soon {K} was [fixed|whole again]. [Only a thin line was left|Nobody could see the crack].
When it was dry, {H} {usedK}. "It works!" {he} [shouted|cried], and {F} [laughed|cheered].
"[There|Done]," said {F}. {H} [took|hugged] {K} and [jumped for joy|thanked {her} three times].
In the end {K} was [stronger|prettier] than before, and {H} had learned how to mend things.
{H} and {F} painted a star over the crack, and {K} [looked better than ever|was good again].
"""),
    "a gift for a friend": ("", """
It was the birthday of {aF}, and {H} [looked for|needed] a gift. {he} had only {aK}.
{he} wanted to give {aK} to {aF}, who [was ill|was sad|had nothing].
{he} [had made|had bought|had wrapped up] {aK} for {aF}, and {he} could hardly wait.
"[What can I give|I must bring something] to my friend?" {he} [wondered|said]. {aF} had always wanted {aK}.
{he} carried {aK} with a [red|blue|yellow] bow on it. It was a gift for {aF}.
{aF} [could not go out|had hurt a leg], so {H} brought {aK} to cheer {her} up.
{he} [thought of|missed] {aF}, an old friend, and chose {aK} as a gift.
In {his} bag was {aK}, a [secret|surprise] for {aF}.
/
But the way was [long|steep|dark], and {K} was [heavy|hard to carry].
On the way [a cold wind blew|it began to rain], and {he} [hid|covered] {K} with {his} [jacket|sleeves].
{he} was [afraid|worried]: what if {F} [did not like it|laughed at it]?
Then {he} [wanted|was tempted] to keep {K}. It was so [nice|fine]! But {he} [went on|walked faster].
A [stranger|merchant] asked, "Will you sell me {K0}?" "[Never|No], it is for {F}," said {H}.
{he} had to [cross a stream|climb over a fence|wade through mud], and {K} got [a little wet|a bit dirty].
{he} [rested|stopped] and looked at {K} again. [Was it good enough|Would {F} be glad]?
{he} got lost and [asked the way|walked in a circle], but {he} never let go of {K}.
/
At last {he} [knocked at the door|found {F}]. "[This is for you|I brought you something]," {he} said and held out {K}.
"[Close your eyes|Guess what I have]," said {H}, and {he} put {K} [before|beside] {F}.
When {F} saw {K}, {she} [could not speak|clapped {hers} hands|jumped up].
{F} [opened the wrapping|untied the bow] slowly. "Is {K0} really for me?" {she} asked.
{H} [bowed|blushed] and gave {K} to {F}, who [smiled from ear to ear|shone with joy].
"[For me|Is it mine]?" asked {F} and [stroked|turned over|looked at] {K}.
{H} set {K} down and [waited|held {his} breath]. {F} [stared|blinked] and then [laughed|sang].
{F} [was waiting|was asleep|sat by the window]. {H} laid {K} [beside|in front of] {her}.
/
"[It is the best gift|I always wanted this]," said {F}, and they {usedK} [at once|together].
{F} [felt better|was not sad any more] and wanted to {useK} right away.
So the two of them {usedK}, and [the day was saved|they forgot the time].
"[How did you know|You thought of me]?" asked {F}. {H} [just smiled|felt warm inside].
{F} gave {him} [a hug|some soup|a song] in return, and then they {usedK}.
They [put|kept] {K} in the [best|sunniest] spot, where [everyone|all] could see it.
{F} [laughed for the first time in days|got up and danced], and {H} [laughed|danced] too.
That made {H} [happier|gladder] than if {he} had kept {K} for {himself}.
"""),
    "a rescue": ("", """
{he} had {aK} with {him} and was about to {useK}.
{he} carried {aK} and [looked for something to do|was in no hurry].
With {aK} beside {him}, {he} {didP}.
{he} had {aK} and [whistled a tune|felt brave].
{his} [mother|father] had sent {him} to fetch {aK}, and now {he} was on the way home.
There lay {aK}, and {he} [picked it up|took it along].
{he} had just [found|bought|cleaned] {aK} when {he} heard a noise.
{he} took {aK}. "[It is a good day to|It is time to] {useK}," {he} said.
/
[Suddenly|Just then] somebody cried, "Help! Help!" It was {aF}, who was stuck [in the mud|between two rocks|in a deep hole].
{aF} had [fallen|slipped] into a ditch and could not get out.
Then {he} saw {aF}, who [was stuck in some thorns|hung from a branch|sat on a high wall] and [cried|trembled].
A [weak|small] voice called for help. {aF} was [trapped|caught] [under a branch|behind a fallen board].
{aF} had climbed too high and [was afraid to come down|could not come down].
"[Help me|Please, help]!" called {aF}. The water was [rising|cold], and {she} [could not swim|held on to a root].
Not far off, {aF} was caught in [a bush|some wire] and [pulled|kicked] without luck.
[Someone was weeping|There was a cry]. {H} [ran|looked] and saw {aF} at the bottom of a pit.
/
"[Hold on|Do not move|Stay calm]!" shouted {H}. "I have {aK1}!"
{H} [thought fast|did not wait]. {he} [took|grabbed] {K} and [ran|crept] closer.
{H} was [afraid|small], but {he} [took a deep breath|clenched {his} teeth] and held out {K}.
"[Can you reach|Can you take hold of|Can you grab] {K0}?" asked {H}. {F} [stretched|tried] [once|twice|three times].
{H} had an idea: [perhaps|maybe] {K} could help. {he} [lay down flat|moved nearer|knelt down].
{he} [called for help|looked around], but no one came. {he} had only {K} and {his} own two hands.
First {H} [spoke softly|calmed {her}]. Then {he} put {K} [close to {her}|in the right place].
{H} [pushed|pulled] with all {his} strength, and {K} [held|did not break].
/
[One, two, three|With one big pull|Little by little], and {F} was free! {K} had [saved the day|been just right].
Thanks to {K}, {F} [got out|came free] [at last|safe and sound]. {she} was [shaking|wet] but not hurt.
In the end {F} [stood|sat] on [dry|firm] ground and [wept for joy|thanked {him}].
{F} held on to {K} and [climbed|crawled] out, [step by step|inch by inch].
"You [saved|rescued] me!" said {F}. "[You and {K0}|And so did {K0}]."
It took [an hour|a long time], but {F} was [safe|free]. {H} [let go of {K} and laughed|fell down and laughed].
Soon {F} was [safe|free], and {H} [wrapped {her} up|gave {her} some water].
{F} [hugged|thanked] {H}. Later they {usedK} and [told everyone|laughed about it].
"""),
    "a contest": ("", """
There was a [race|contest|game] that day, and the prize was {aK}. {H} wanted to win it.
A [sign|poster] said: "Who can [sing|run|jump] best? The prize is {aK1}!"
"Whoever [wins the race|answers my question] gets {aK1}," said [the mayor|the teacher|an old man].
{he} [dreamed of|longed for] {aK}, and it was the first prize of the great race.
[The whole town|Everyone] had come, because one could win {aK}.
On a table stood the prize, {aK}. "I want to {useK}," thought {H}.
The [queen|mayor] had given {aK} as a prize for the [fastest|best] runner.
{H} had practised [for weeks|all summer] to win {aK}.
/
{aF} was [faster|stronger|taller], and {she} wanted {K} too.
"You will never win," said {aF}. {H} [said nothing|swallowed hard|grew red].
At the start {aF} stood beside {him}, and both [looked at|thought of] {K}.
{aF} was the best of all. "[I have no chance|How can I win]?" thought {H}.
[Ready, steady, go|Three, two, one]! {aF} was [ahead|in front], and {H} came after.
{H} [ran|tried] as hard as {he} could, but {aF} was [quicker|always in front].
{aF} [laughed|grinned]. "{K0} is [as good as mine|already mine]!"
{H} [fell down|lost a shoe] at the start, and {aF} [rushed|flew] by.
/
But then {F} [fell|slipped|stumbled] and [held {hers} foot|could not get up]. {H} [stopped|turned back].
Near the end {F} [was out of breath|got a cramp]. {H} [slowed down|gave {her} a hand].
{H} could have [won|passed], but {he} [stopped to help {F}|helped {F} up first].
Then {F} took the wrong [path|turn]. "[This way|Over here]!" called {H}.
{H} did not give up. {he} [counted|breathed], [one step, then another|slow and steady].
{F} [looked back|waved at the crowd] and did not see the [puddle|root]. Down {she} went.
A lace of {hers} shoe broke. {H} [lent {her} a string|waited for {her}].
Halfway there, {F} [stopped to rest|fell asleep]. {H} went on [quietly|step by step].
/
They [reached the end|crossed the line] [together|side by side], and so {K} belonged to both.
{H} [won|came first] by a [nose|hair] and got {K}. "[Well done|That was fair]," said {F}.
{F} won, but {she} gave {K} to {H}. "[You are the real winner|You helped me]," {she} said.
The [judge|mayor] said, "{H} has a good heart," and gave {him} {K}.
{H} did not win {K}, but {he} won [a friend|something better], for now {F} was {his} friend.
Everyone [clapped|cheered] when {H} [held up|got] {K}, and {F} clapped [loudest|too].
In the end both got {K} and {usedK} [in turns|together].
"[We both won|Let us share it]," said {H}, and they {usedK} [that very day|until night].
"""),
    "being brave": ("", """
{he} had to bring {aK} there, but {he} was afraid [of the dark|of the shadows|of loud noises].
{his} [brother|sister] had left {aK} there, and someone had to fetch it.
"[Who will|Who dares to] fetch {aK1}?" asked [the teacher|{his} father]. {H} [trembled|gulped].
They said that {aK} was hidden there, but nobody [dared|wanted] to go.
{he} carried {aK} and [looked around|walked on tiptoe], for {he} was [a bit scared|not very brave].
{he} [held|clutched] {aK} because it made {him} feel [safe|less alone].
There was {aK} that {he} wanted, but [a strange noise|a dark shape] was there too.
{he} had {aK} and [wanted|hoped] to {useK}, but {he} was [shy|afraid].
/
[Something moved|A board creaked|Something growled]! {H} [dropped|held on to] {K} and could not move.
It was so [dark|still] that {he} heard {his} own heart. [Boom, boom|Thump, thump].
"[Go back|Turn around]," said a small voice in {his} head. {his} knees [shook|were weak].
A [shadow|shape] [grew|rose] on the wall. "[Who is there|Is anyone there]?" {H} whispered.
{he} [took one step|stopped] and [shut {his} eyes|shivered].
The wind [howled|moaned], and {he} [wanted to run home|hid {his} face].
{he} [began to cry|bit {his} lip]. "I [cannot|will never] do it," {he} said.
Twice {he} [started|tried], and twice {he} [ran back|turned around].
/
Then {aF} [came|stood beside {him}]. "[I am afraid too|We can go together]," {she} said.
{aF} took {his} hand. "[Count to ten|Breathe slowly|Sing with me]," said {F}.
But it was only {aF}! "[Did I scare you|I was lost]," said {F} and [laughed|blinked].
{H} thought of {aF}, {his} best friend, who was never afraid. That [helped|gave {him} strength].
"Being brave means [to be afraid and go on|to try anyway]," said {aF}, who had [seen|heard] {him}.
{aF} [called|whispered], "[You can do it|One step at a time]." {H} [nodded|stood up].
The noise came from {aF}, who was [even more afraid|stuck behind a door].
{aF} needed help in there. So {H} [forgot|swallowed] {his} fear.
/
{H} [walked in|went on], [one step|a little] at a time, and [nothing bad happened|it was only the wind].
{he} [took|lifted] {K} and [held it high|walked out]. "I did it!" {he} [shouted|cried].
Together they got {K}, and [the dark|the place] was not so [bad|scary] any more.
So {he} [opened {his} eyes|looked closely]: the shape was [only a post|a bush].
With {F} at {his} side {he} {usedK} and [laughed|sang] [out loud|at the shadows].
Now {H} was [brave|bold]. {he} [picked up|carried] {K}, and {F} [clapped|was proud of {him}].
{he} had done it! {K} was [safe|there], and {his} fear was [gone|small now].
They came out with {K}, [dusty|pale] but [proud|glad], and then they {usedK}.
"""),
    "the storm": ("", """
{he} had {aK} and wanted to {useK}, because [the sky was blue|it was a free day].
{he} brought {aK}, and {he} [did not look at the sky|had the whole day to play].
{he} had put {aK} outside and [sat down beside it|went to rest].
{he} took out {aK}. "[What a day to|At last I can] {useK}!" {he} said.
{he} had {aK} with {him}, and [all was calm|the air was still].
{he} had no bag, only {aK} [that day|with {him}].
{he} was [on a long walk|far from home] with {aK}.
{he} owned {aK}, and there {he} {usedK} and [forgot the time|felt free].
/
But [dark|grey|black] clouds came [fast|from the west], and [it began to pour|the rain fell hard].
Then [thunder rolled|the wind rose], and {K} [got wet|almost blew away].
[Suddenly|All at once] there was [a flash|a loud crash], and {he} [ran|hid] with {K}.
A storm [came up|broke loose]. {he} [held|covered] {K} and [shivered|looked for shelter].
[Drip, drop|Splash]! In a moment {he} was wet [from head to foot|to the skin], and so was {K}.
The wind [tore|pulled] at {K}. {he} [held on|could hardly hold it].
Soon the path was [a stream|all mud], and {he} could not carry {K} home.
"[A storm|It is raining]!" {he} cried, and {he} [pressed|pulled] {K} close.
/
"[Come in|Over here|Quick, this way]!" called {aF}, who had [a dry place|found shelter].
{aF} was [cold|wet] too. They [sat close together|shared a dry corner] and waited.
{he} met {aF} under [a roof|some boards]. "[There is room for two|Sit with me]," said {F}.
{aF} [waved|called] from a doorway and [let {him} in|gave {him} a towel].
There {he} found {aF}, who was [afraid of the thunder|all alone]. "[I will stay|Do not fear]," said {H}.
{aF} came [with a big sheet|running]. They [held it over|pulled it over] their heads.
They were two now, for {aF} had [come|run] in as well. {F} told [a tale|jokes] until the thunder [stopped|was far off].
"[Are you alone|Is {K0} yours]?" asked {aF} in the dark. "Yes," said {H}. "[Stay here|Wait with me]," said {F}.
/
At last the sun [came back|broke through], and {K} [soon was dry|shone like new].
When the rain stopped, there was a rainbow, and they {usedK} [under it|in the fresh air].
After the storm the air smelled sweet. {F} [helped to dry|wiped] {K}, and they {usedK}.
[Slowly|Soon] the clouds went away. "[Look|See]!" said {F}, and [there was a rainbow|the birds sang].
Nothing was lost: {K} was [wet but whole|safe], and so were they.
Outside everything [dripped|shone]. {H} took {K}, and {F} [came along|walked beside {him}].
{H} was not [sad|cross] about the rain, for it had brought {him} a friend. They {usedK}.
Then it was over. They [jumped over the puddles|ran outside] and {usedK}.
"""),
    "a new friend": ("", """
{he} had {aK}, but no one to {useK} with.
{he} [was new there|knew nobody] and had only {aK} [for company|with {him}].
"I wish I had a friend," {he} [said|sighed] and looked at {aK}.
{he} had {aK}. Alone {he} {usedK}, but it was [not much fun|lonely].
{he} [sat|stood] with {aK} and [watched the others|listened to the others] play.
{he} [talked|sang] to {aK}, because {he} was lonely.
Nobody [asked {him} to play|said hello], so {he} took {aK} and went [off|on] alone.
{he} had {aK} from {his} old home, and it made {him} think of old friends.
/
One [day|hour] later {he} saw {aF}, who [was alone too|kicked at the dust].
Then {aF} came [closer|near] and [looked|peeped] at {K}.
Behind a [fence|bush] stood {aF}, too shy to [come out|say a word].
{aF} [sat nearby|was watching]. {H} [wanted to speak|opened {his} mouth], but no word came out.
{aF} [looked at|smiled at] {K}, but then {she} [looked away|ran off].
"[What is that|What have you there]?" asked {aF}. {H} was [too shy to answer|so surprised that {he} jumped].
{he} [looked up|turned around], and there was {aF}. Both [were silent|turned red].
{aF} [had no friends|was not like the others], and people [laughed at|did not talk to] {her}.
/
{H} [took heart|was brave]. "[Hello|Good day], do you want to {useK} with me?" {he} asked.
{H} [held out|pointed to] {K}. "[Try it|Come and see]," {he} said [softly|kindly].
"My name is {H}," {he} said. "This is {K0}." {F} [came nearer|smiled].
{H} [pushed|moved] {K} a little closer to {her}, and {F} [took it|laughed].
At the same time both said "Hello!" and then they [laughed|giggled].
{F} [tripped|sneezed], {H} [laughed|smiled], and then {F} [laughed|smiled] too.
"[I know how to|Please show me how to] {useK}," said {F} [at last|shyly]. {H} [nodded|made room].
{H} [gave {her} half of {his} bread|made a funny face], and {F} [sat down|came over].
/
They {usedK} [all day|until the sun went down] and [talked about everything|made up a song].
Soon they {usedK} like [old friends|brother and sister].
{F} showed {him} [a better way|a trick], and they {usedK} [again and again|once more].
{H} was not [alone|lonely] any more. {he} had {K}, and {he} had {F}.
"[Tomorrow too|Are we friends]?" asked {F}. "[Of course|Yes]!" said {H}, and they {usedK}.
So {H} found [a friend|what {he} had wished for], and {K} had [helped|brought them together].
They [laughed|ran] so much that they [forgot|nearly forgot] {K}.
With two, everything was [easier|more fun], even to {useK}.
"""),
    "a trade": ("", """
{he} saw {aK} [in the hands of {aF}|that belonged to {aF}], and {he} wanted it very much.
{aF} had {aK}, and {H} [could think of nothing else|wished for it].
{aF} was [selling|giving away] {aK}. "[What does it cost|How much is it]?" asked {H}.
"[If only I had|I need] {aK1}!" said {H}. {aF} had one.
{he} needed {aK}, but the only one {he} could find was in the hands of {aF}.
{aF} sat there with {aK}. "[Will you trade|What do you want for it]?" asked {H}.
{he} needed {aK} [by evening|for {his} mother], and only {aF} had one.
{H} met {aF}, who [owned|had found] {aK} and did not need it.
/
"Bring me [something warm|something sweet|something that shines], then {K0} is yours," said {F}.
But {H} had [no money|empty pockets|only a bit of string] to pay for {K}.
{he} offered [a penny|a bit of bread|a song], but {F} [shook {hers} head|wanted more].
{F} [thought|smiled]. "Help me for one day, and I will give you {K0}."
"I do not want money," said {F}. "I want [a good story|a helping hand|a friend]."
{H} [turned out {his} pockets|counted {his} pennies]. It was not enough for {K}.
{F} said, "[First|Before that] you must [carry my wood|paint my fence|sweep my floor]."
{H} went [from door to door|up and down], but nobody [would lend|gave] {him} a penny for {K}.
/
So {he} [worked|helped] [hard|all day] and [never complained|sang while {he} worked].
{he} [carried|sorted|washed] everything, and {his} arms [hurt|grew tired].
{he} told the [longest|funniest] tale {he} knew, and {F} [laughed till {she} cried|listened to each word].
{H} had an idea and [ran home|picked berries]. Soon {he} came back with [warm soup|a jug of juice].
First {he} [mended a fence|chopped wood], then {he} [swept|scrubbed], and {F} watched.
{he} [sang|worked] so well that [people stopped to listen|{F} was amazed].
It was [hard|slow], but {H} thought of {K} and [went on|did not stop].
When {F} [grew tired|was hungry], {H} shared {his} supper with {her}.
/
"[A deal is a deal|You have earned it]," said {F} and gave {him} {K}.
{F} [kept {hers} word|shook {his} hand], and {K} [was {his}|changed hands].
"[Take it|It is yours]," said {F}. {H} [took {K}|bowed] and {usedK}.
In the evening {F} [brought|handed over] {K}, and both [were pleased|thought they had the better deal].
{F} gave {him} {K} and [some bread|a handful of nuts] [on top|as well].
So {H} got {K}, and {F} got [a helper|a friend]. It was a fair trade.
{H} [held|hugged] {K}. {he} had [worked|waited] for it, and so it was [worth more|dear to {him}].
"[Come and {useK} with me|We can both enjoy it]," said {H}, and {F} was glad.
"""),
    "saying sorry": ("", """
{aF} had {aK}, and {H} [took it without asking|borrowed it in secret].
There stood {aK}. It belonged to {aF}, but {H} wanted to {useK}.
{aF} had {aK}. "I will only {useK} for a minute," thought {H}, but {he} did not ask.
{he} [saw|found] {aK} that {aF} had left there, and {he} hid it [for fun|as a joke].
{aF} had lent {him} {aK} and said, "[Be careful with it|Bring it back soon]."
While {aF} was away, {H} took {aK} and {usedK}.
{H} was [jealous|cross], because {aF} had {aK} and {he} had none. So {he} took it.
{aF} [trusted|liked] {H} and let {him} watch over {aK}.
/
But {he} [dropped|lost] {K}, and [it got dirty|it fell into the mud].
Then {F} came back and asked, "Where is {K0}?" "I do not know," said {H}. That was a lie.
{F} looked [everywhere|for hours] for {K} and [was very sad|began to cry].
{H} [hid|covered up] {K} and [said nothing|looked away]. {his} [face grew hot|stomach hurt].
{F} thought that [a thief|the wind] had taken {K}. {H} [kept still|felt terrible].
That night {H} could not sleep. {he} [saw|thought of] {K} again and again.
"[Did you see|Who took] {K0}?" asked {F}. {H} [turned red|looked at {his} feet].
{K} was [scratched|dirty] now, and {H} was afraid to [tell {F}|go back].
/
At last {H} [went to {F}|took a deep breath] and said, "[I am sorry|Forgive me]. I took {K0}."
"[It was me|I did it]," said {H} [quietly|with tears]. "I should have asked."
{he} [cleaned|washed] {K} and [carried it back|brought it back]. "I am so sorry," {he} said.
"[I told a lie|I was wrong]," said {H}. "[I took|I hid] {K0}, and I am sorry."
Then {H} told the truth, [every word of it|from start to end], and gave back {K}.
{H} [wrote a note|made a card]: "I am sorry." {he} put it on {K} and [waited|hid].
{his} mother said, "[Tell the truth|Go and say sorry]." So {H} went to {F} with {K}.
{H} [knocked|came] and held out {K}. "[Please do not be angry|I made a mistake]," {he} said.
/
{F} was silent. Then {she} [smiled|nodded]. "[Next time just ask|Thank you for telling me]," {she} said.
"I am [not angry|glad] [now|any more]," said {F}. "[You told the truth|You came back]."
{F} [forgave {him}|gave {him} {hers} hand], and they {usedK} together.
{F} [sighed|thought for a moment] and said, "[We are still friends|You can {useK} too]."
It was [hard|not easy], but now {H} felt [light|better], and {F} was {his} friend again.
"[Let us|Shall we] {useK} together?" asked {F}. {H} [was so glad|could not believe it].
{H} promised [never to do it again|always to ask], and {F} [believed {him}|shook {his} hand].
To make up for it, {H} [helped {F} all week|gave {F} {his} supper], and they {usedK}.
"""),
    "practice": ("toy music tool wear home", """
{he} had {aK}, but {he} [could not|did not know how to] {useK}.
{he} had {aK} of {his} own [at last|now], and {he} had always wanted to {useK}.
"[How hard can it be|I will learn it]?" said {H} and took {aK}.
[On a shelf|On a bench] was {aK}, and {he} wanted to learn to {useK}.
{his} [aunt|grandmother] gave {him} {aK}. "Learn to {useK}," she said.
{H} had {aK}. All the others could {useK}, but {he} [was slow|had never tried].
{he} [got|bought] {aK} with {his} first money and wanted to {useK} [at once|better than anyone].
{he} took {aK} there, because [nobody could see {him}|it was quiet there], and tried to {useK}.
/
It went wrong [at once|the first time], and {K} [fell down|slipped away]. [Others laughed|Some people laughed].
{he} [tried|failed] [three|five|ten] times. {his} [arms|hands] hurt, and {K} [seemed too heavy|was no help].
"[This is too hard|I give up]!" {he} cried and put {K} [away|down].
{he} [pushed|held] {K} the wrong way round, and [down it went|nothing happened].
[Bump|Oops]! {K} [landed|fell] on {his} foot. {H} [hopped|yelped].
"You will never learn it," [said a boy|said someone]. {H} [wanted to cry|looked at {K}].
First it was [too fast|too much], then [too slow|too little]. {K} just would not do what {he} wanted.
{he} threw down {K} [in anger|and sat down]. "I [cannot|will never] {useK}," {he} said.
/
{aF} [had watched|came by]. "[I could not do it at first|Try it slowly]," said {F}.
{aF} showed {him} how to {useK}. "[First like this, then like that|Watch my hands]," {she} said.
"[Again|Once more]," said {aF}. "[Nobody is good on the first day|A little every day]."
{aF} [helped|sat down beside] {him}. [Every day|Each evening] they [practised|tried] together.
{aF} [smiled|nodded]. "[You are holding it wrong|You are too quick]," {she} said. "Look."
{H} asked {aF} for [help|advice]. "[Be patient|Go step by step]," said {F}.
{aF} said, "When I was small, I [fell|failed] a hundred times."
So {H} [practised|tried] [day after day|from morning to night], and {aF} [counted|cheered] for {him}.
/
After [a week|many days], {he} {usedK} [all by {himself}|without one mistake]. "I can do it!" {he} cried.
And one day it worked: {he} {usedK}, and {F} [clapped|cheered].
Slowly it got better, and [at last|in the end] {he} could {useK} [with ease|as well as {F}].
{H} [held|took] {K}, [took a breath|closed {his} eyes], and it worked!
[Soon|In spring] {he} {usedK} in front of [the whole class|the town], and [nobody|no one] laughed.
Now {he} could {useK}, and {he} [taught|showed] a little [boy|girl] how to do it.
"[See|You did it]!" said {F}. {H} {usedK} [again|twice more], just [for fun|for joy].
{H} had learned to {useK}, [bit by bit|step by step], with [time|help] and {K}.
"""),
    "a strange noise": ("", """
{he} had {aK} with {him} and had come to {useK}.
{he} was [holding|cleaning] {aK} when {he} heard something.
With {aK} in {his} [bag|arms], {he} [stood still|listened].
{he} sat beside {aK} and {didP}, and all was quiet.
{he} wanted to show {aK} to {his} [sister|brother], but [something stopped {him}|first {he} rested].
{he} had [left|put] {aK} there [last night|the day before] and wanted it back.
{he} [was looking for|came to fetch] {aK}, which {he} had left there.
{he} had {aK}. "[Now I can|I think I will] {useK}," {he} said.
/
[Tap, tap, tap|Squeak, squeak|Scratch, scratch]! A [strange|funny] noise came from [behind a wall|under the floor|somewhere close].
Then {he} heard a [low|soft|high] sound. [It came again|It stopped, and then it came again].
"[What was that|Who is there]?" {H} whispered. [Nobody answered|It grew louder].
[Something|Somebody] was [moving|breathing] [in the dark|behind {him}]. {H} [froze|held {his} breath].
"[Whoo|Hmm]," it went. {H} [grabbed|hid behind] {K}.
There was a [bump|knock] and then [a cough|a sigh|a giggle]. Who could it be?
First there was a [hum|whistle], then a [thud|click]. {H} [did not dare to move|shook].
The noise came [near|closer and closer]. {H} [lifted|held] {K} high.
/
{he} [crept|went] closer, [step by step|on tiptoe], and saw {aF}!
{he} [pulled aside a board|opened a little door]. There sat {aF} and [blinked|sneezed].
It was {aF}, who had [a bad cold|got locked in|been looking for food].
"Please do not be afraid," said a voice. It was {aF}, who [had lost the way|was hiding from the cold].
{he} [looked around the corner|called "Come out!"], and out came {aF}, [dusty|shy] and thin.
"[It is only me|I am sorry]," said {aF}. "I [was hungry|could not sleep]."
In a [corner|box of straw] sat {aF}, [more afraid than {H}|with a hurt foot].
{H} [took heart|was curious] and looked. {aF} was [singing to {hers} family|making music with two lids].
/
{H} [laughed|was relieved]. "[Stay here|You can stay]," {he} said, and they {usedK}.
{he} [gave {her} some bread|brought warm milk], and then {he} showed {her} {K}.
"[I thought you were a ghost|You scared me]," said {H}, and they both [laughed|giggled].
Now there was nothing [strange|scary] about it. {F} [helped|asked] to {useK}.
{F} [pointed|looked] at {K}. "[That is nice|May I see it]?" So they {usedK}.
So the [noise|ghost] was only {F}, and {K} was safe.
"[Will you|Do you want to] {useK} with me?" asked {H}. {F} [nodded|jumped up].
They [had supper together|talked for hours], and {K} [lay|stood] between them.
"""),
    "a long way": ("", """
{he} had to bring {aK} to {aF}, who lived [far away|on the other side].
{aF} was waiting for {aK}, and {H} was the one to bring it.
"[Take|Bring] {aK1} to {F}," {his} [mother|father|teacher] had said. {F} was {aF1}.
{he} had promised {aF} to come [before dark|by noon] with {aK}.
{H} carried {aK} on {his} back, for {aF} [needed it|had asked for it].
A [note|message] had come from {aF}: "Please bring {aK1}!" So {H} [set off|went].
{he} [packed|took] {aK} and [waved goodbye|said goodbye], for {aF} [was far away|needed help].
It was a long [walk|trip] to {aF}, and {H} had {aK} to carry.
/
After an hour {his} feet [hurt|were sore], and {K} felt [heavy|like lead].
The [road|path] was [full of mud|blocked by a fallen trunk], and {K} [slipped|almost fell].
{he} came to [a fork in the road|three paths] and did not know [the way|where to go].
It grew [dark|cold|hot], and {he} was [tired|thirsty], but {he} [held|kept] {K} tight.
[Mist|Fog] came up, and {he} [could not see|got lost]. {he} [sat down on|leaned on] [a rock|a post] with {K}.
Halfway there, {he} wanted to {useK} and [rest|forget the rest].
"[Turn back|It is too far]," said [a traveller|an old woman]. But {H} [looked at {K}|shook {his} head].
A [big|mean] man stopped {him}. "[Give me {K0}!|What have you there?]" {H} ran.
/
{he} [followed|looked for] the [stars|sun|smoke of a chimney] and [went on|walked all night].
{he} sang [a marching song|to keep awake] and took [one step after another|bigger steps].
[A kind|An old] man [gave {him} water|showed {him} the way]. "[Not far now|Go straight on]," he said.
{he} [thought of|remembered] {F} and [walked faster|did not stop].
"[Left|Right|Straight ahead]," {he} decided, and [it was the right way|luck was with {him}].
{he} [rested|slept] for [an hour|a while], then {he} picked up {K} again.
At [last|sunrise] {he} saw [a light|smoke|a small house] [in the distance|far off].
{he} crossed [the stream|the mud] on [stepping blocks|a plank], with {K} held high.
/
There [stood|was] {F}, [waving|at the door]! "[You came|I knew you would come]," {she} said and took {K}.
{F} [ran to meet {him}|opened the door]. {K} had arrived [safely|in time].
"Here is {K0}," said {H} and [sank down|sat down]. {F} [brought soup|hugged {him}].
{H} put {K} in front of {F}, and they {usedK} [that same evening|at once].
{F} [could hardly believe it|was so happy]. "[All that way|You walked so far] for me?" {she} asked.
The long way was [forgotten|worth it] when {F} [saw|held] {K}.
{H} was [tired|hungry], but {he} had [kept {his} word|done it], and {F} had {K}.
They ate [hot soup|bread and jam], and then {F} wanted to {useK}.
"""),
    "an old treasure": ("", """
There {he} [dug|looked] [under some leaves|behind a loose board] and found {aK}.
Something [shone|stuck out] [in the dirt|between two rocks]. It was {aK}!
{he} [stumbled over|bumped into] {aK}, [covered with dust|half buried].
{he} found {aK} with a name on it, [carved|written] in small letters.
An old [story|song] told of {aK} that was hidden there. And {he} found it!
{he} wanted to {doP}, but then {he} saw {aK}, [old and dusty|left behind].
"[What is this|Is this a treasure]?" {he} asked and picked up {aK}.
Under a [cloth|board] lay {aK}, and nobody knew [how it got there|whose it was].
/
"[Now I am rich|I will keep it]!" said {H}. But whose was {K}?
{he} [cleaned|wiped] {K} with {his} sleeve. [Who had lost it|How old was it]?
{he} [wanted|was eager] to {useK}, but [it was not {his}|it felt wrong].
{he} [asked|showed it to] [everyone|the baker|three people], but nobody knew {K}.
[Someone|Somebody] must be sad about {K}, {he} thought, and [sat down|put it down].
{he} looked [inside|at the back]. There was [a small mark|an old date].
{he} [hid|carried] {K} under {his} [shirt|arm] and went to [ask|find the owner].
At first {he} was [glad|proud]. Then {he} wondered who was missing {K}.
/
Then {aF} came, who was [looking at the ground|very sad]. "I lost {aK1} [years|a month] ago," {she} said.
{he} met {aF}. "[That is|It looks like] the one I lost!" {she} said [with tears|in a whisper].
{aF} [saw|knew] {K} at once. "[My|It is my] grandfather made it," said {F}.
"[Do you know|Have you ever seen] {K0}?" {H} asked {aF}. {F} [grew pale|jumped].
{H} [heard|learned] that {aF} had [lost|been looking for] {aK1} [for years|all that time].
The name on it was that of {aF}! {H} [ran|went] to {her} [at once|with it].
{aF} was [weeping|searching]. "It is all I have from my mother," said {F}.
"[How does yours look|What was it like]?" {H} asked {aF}, and {F} told {him} every detail.
/
{H} [gave {K} back|held out {K}], though [it was hard|{he} liked it]. {F} [hugged it|cried for joy].
"[It is yours|Take it]," said {H}. "[You are honest|Thank you]," said {F}.
{F} let {him} {useK} [whenever {he} liked|as often as {he} wanted].
As a reward {F} [taught {him} to {useK}|told {him} its story].
Then {F} told {him} [how old it was|the story of {K}], and they {usedK}.
{H} [did not keep|gave up] {K}, but {he} [felt rich|had a new friend].
"[You found it|Without you it would be lost], so we can share it," said {F}, and they {usedK}.
{F} [pressed {K} to {hers} heart|laughed like a child], and {H} [knew|felt] that it was right.
"""),
}
