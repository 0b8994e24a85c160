//! Made-up news: four topics, each with words that it uses more often than the others do.

use std::path::{Path, PathBuf};

use super::Amount;
use crate::agnews::{CLASSES, OFFICIAL, PLACE};
use crate::rng::{Purpose, RandomStream};

/// The words of the topics, in class order.
const TOPICS: [&str; CLASSES.len()] = [
    "president minister troops election parliament rebels ceasefire border embassy treaty \
     refugees protest militia hostage diplomat sanctions capital province insurgents summit \
     coalition peace soldiers government bombing ambassador nuclear talks leader vote",
    "season coach striker goal innings playoff championship quarterback tournament medal \
     stadium pitcher touchdown defender referee league victory defeat halftime sprinter \
     wicket olympic rookie homer penalty overtime captain champion match title",
    "shares profit earnings investors dollar oil merger stocks quarter revenue retailer bank \
     inflation index bond forecast takeover economy analyst dividend crude airline lender \
     exports bankruptcy consumer rates barrel trading acquisition",
    "software internet browser spacecraft processor virus astronomers server download chip \
     wireless satellite search linux scientists genome rocket hacker console laptop database \
     telescope broadband encryption robot spam asteroid patch mobile search",
];

/// The words of all topics.
const COMMON: &str = "the a of to in on for and with after before said says new its his their from \
    by at over under would could will has have was were is are more than first second last week \
    month year monday tuesday thursday friday officials people report plan group company world \
    city country day time big small high low start end move deal call news sources according";

/// Places and agencies that news begin with.
const PLACES: [&str; 8] = [
    "LONDON (Reuters)",
    "NEW YORK (AP)",
    "TOKYO (AFP)",
    "Reuters",
    "AP",
    "BERLIN",
    "SYDNEY",
    "WASHINGTON (Reuters)",
];

/// `count` made-up news as running text, a line each.
pub(super) fn prose(set: u64, count: usize, seed: u64) -> String {
    let (writer, mut text) = (Writer::new(), String::new());
    for index in 1..=count as u64 {
        let mut stream = RandomStream::keyed(Purpose::Synthetic, seed, set, index);
        let class = stream.below(CLASSES.len() as u32) as usize;
        let (title, body) = writer.news(class, &mut stream);
        text += &format!("{title}. {body}\n");
    }
    text
}

/// The files of the twin below `dir`, with their contents.
pub(super) fn files(dir: &Path, Amount { train, test, seed }: Amount) -> Vec<(PathBuf, Vec<u8>)> {
    let writer = Writer::new();
    let file = |name: &str, set: u64, count: usize| {
        let mut classes: Vec<usize> = (0..count).map(|index| index % CLASSES.len()).collect();
        // Key 0 of a set is its order of classes.
        RandomStream::keyed(Purpose::Synthetic, seed, set, 0).shuffle(&mut classes);
        let mut contents = String::new();
        for (class, index) in classes.into_iter().zip(1..) {
            let mut stream = RandomStream::keyed(Purpose::Synthetic, seed, set, index);
            writer.row(class, &mut stream, &mut contents);
        }
        (dir.join(PLACE.folder).join(name), contents.into_bytes())
    };
    let [first, second] = &OFFICIAL;
    vec![file(first.name, 0, train), file(second.name, 1, test)]
}

struct Writer {
    topics: [Vec<&'static str>; CLASSES.len()],
    common: Vec<&'static str>,
}

impl Writer {
    fn new() -> Self {
        Self {
            topics: TOPICS.map(|words| words.split_whitespace().collect()),
            common: COMMON.split_whitespace().collect(),
        }
    }

    /// Appends a row of `class`, with the doubled quotes of the real file.
    fn row(&self, class: usize, stream: &mut RandomStream, contents: &mut String) {
        let (number, (title, text)) = (class + 1, self.news(class, stream));
        *contents += &format!("\"{number}\",\"{title}\",\"{}\"\n", text.replace('"', "\"\""));
    }

    /// News of `class`: a title, and a place with a text that has the commas, quotes, backslashes
    /// and apostrophes of the real news.
    fn news(&self, class: usize, stream: &mut RandomStream) -> (String, String) {
        let title = self.words(class, 4 + stream.below(4), stream);
        let text = self.words(class, 12 + stream.below(12), stream);
        let place = PLACES[stream.below(PLACES.len() as u32) as usize];
        let amount = stream.below(90) + 10;
        let mut title = title.join(" ");
        if let Some(first) = title.get_mut(..1) {
            first.make_ascii_uppercase();
        }
        let (start, end) = text.split_at(text.len() / 2);
        let (start, end) = (start.join(" "), end.join(" "));
        let middle = match stream.below(4) {
            0 => format!("{start}, {end}"),
            1 => format!("{start} \"{end}\""),
            2 => format!("{start}\\{end}"),
            _ => format!("{start}'s ${amount} {end}"),
        };
        (title, format!("{place} - {middle}."))
    }

    /// Words, of which about three in ten are of the topic and one in ten is of another.
    fn words(&self, class: usize, count: u32, stream: &mut RandomStream) -> Vec<&'static str> {
        let draw = |words: &[&'static str], stream: &mut RandomStream| {
            words[stream.below(words.len() as u32) as usize]
        };
        (0..count)
            .map(|_| match stream.below(10) {
                0..3 => draw(&self.topics[class], stream),
                3 => {
                    let other = stream.below(CLASSES.len() as u32) as usize;
                    draw(&self.topics[other], stream)
                }
                _ => draw(&self.common, stream),
            })
            .collect()
    }
}
