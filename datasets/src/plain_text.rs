//! A plain text to continue: blocks of tokens, each token with the one after it as its label.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::augment::Augment;
use crate::dataset::{Batch, Dataset, Features, Shape, whole};
use crate::definition::{
    About, Data, DatasetDefinition, Form, Holds, Reading, Selection, check_count,
};
use crate::error::{Error, Result};
use crate::files::{self, FileSum};
use crate::open::unpacked;
use crate::rng::{Purpose, RandomStream};
use crate::survey::{Survey, grouped};
use crate::tokens::{LARGEST_VOCABULARY, Tokens};

/// The most bytes of a text; its tokens take four times that.
const LIMIT: u64 = 1 << 30;

settings! {
    /// Where a text lies, how it is split into training and test, and how it becomes tokens.
    pub struct PlainText {
        /// The file of the text, in UTF-8; packed by gzip or not.
        pub file: PathBuf = PathBuf::from("data/tinyshakespeare/input.txt"),
        /// The file that is tested on; absent for the end of `file`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub test_file: Option<PathBuf> = None,
        /// What a token is: one of the `characters`, one of the `bytes`, or a piece of a word that byte pair encoding has
        /// learned from the training text (`bpe`).
        pub tokens: TokensOf = TokensOf::Characters,
        /// A `tokenizer.json` of the library `tokenizers` in place of `tokens`.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub tokenizer: Option<PathBuf> = None,
        /// The largest number of different characters, and the number of tokens that `bpe` learns.
        #[cfg_attr(feature = "schema", schemars(range(min = 2, max = 1 << 20)))]
        pub vocabulary: usize = 1024,
        /// Tokens that a model sees at a time (the length of a block).
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1 << 16)))]
        pub length: usize = 64,
    }
}

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum TokensOf {
    /// A character.
    Characters,
    /// A byte.
    Bytes,
    /// A piece of a word, learned by byte pair encoding.
    Bpe,
}

impl DatasetDefinition for PlainText {
    fn about(&self) -> About {
        About {
            name: "text",
            line: "a plain text to continue, by characters, bytes or learned tokens",
            paper: "",
        }
    }

    fn holds(&self) -> Holds {
        Holds::Sequences
    }

    fn learns_tokens(&self) -> bool {
        self.tokens != TokensOf::Bytes && self.tokenizer.is_none()
    }

    fn form(&self) -> Result<Form> {
        let vocabulary = match (self.tokens, &self.tokenizer) {
            (_, Some(_)) => LARGEST_VOCABULARY,
            (TokensOf::Bytes, None) => 256,
            (TokensOf::Characters | TokensOf::Bpe, None) => self.vocabulary,
        };
        let shape = Shape::Sequence { vocabulary, length: self.length };
        Ok(Form { shape, classes: vocabulary })
    }

    fn validate(&self, samples: &Selection) -> Result<()> {
        check_count("dataset.vocabulary", self.vocabulary, 2, LARGEST_VOCABULARY)?;
        check_count("dataset.length", self.length, 1, 1 << 16)?;
        if self.tokens == TokensOf::Bpe && self.vocabulary <= 256 {
            let problem = "bpe begins with 256 tokens, one for each byte; write more, such as 1024";
            return Err(Error::setting("dataset.vocabulary", &self.vocabulary, problem));
        }
        samples.share(self.test_file.is_some()).map(drop)
    }

    fn survey(&self) -> Option<Result<Survey>> {
        let survey = |data: Data| {
            let [train, test] = [&data.train, &data.test].map(|set| whole(&**set).labels);
            let blocks = (1..).zip(train.chunks(self.length));
            let mut known: HashMap<&[u32], usize> = HashMap::new();
            blocks.for_each(|(number, block)| _ = known.entry(block).or_insert(number));
            let tests = test.chunks(self.length).zip(1..);
            let block = |set, number| format!("block {number} of the {set} text");
            Survey {
                path: self.file.clone(),
                sample: format!("a text to continue, in blocks of {} tokens", self.length),
                doubles: tests
                    .filter_map(|(tokens, number)| Some((number, *known.get(tokens)?)))
                    .map(|(test, train)| (block("test", test), block("training", train)))
                    .collect(),
                classes: vec![("tokens".into(), train.len() as u64, test.len() as u64)],
                files: data.files,
                warnings: data.warnings,
            }
        };
        let reading =
            Reading { scratch: Path::new(""), samples: Selection::default(), vocabulary: None };
        Some(self.load(&reading).map(survey))
    }

    fn load(&self, reading: &Reading<'_>) -> Result<Data> {
        let mut train = read(&self.file, "dataset.file")?;
        let mut files = vec![FileSum::new(&self.file, &train.bytes)];
        let test = match &self.test_file {
            Some(path) => {
                let test = read(path, "dataset.test_file")?;
                files.push(FileSum::new(path, &test.bytes));
                test
            }
            None => train.split(reading.samples.share(false)?),
        };
        let tokens = match (reading.vocabulary, &self.tokenizer) {
            (Some(json), _) => Tokens::from_json(json)?,
            (None, Some(path)) => {
                let tokenizer = read(path, "dataset.tokenizer")?;
                files.push(FileSum::new(path, &tokenizer.bytes));
                Tokens::from_json(&tokenizer.utf8(path)?)?
            }
            (None, None) => match self.tokens {
                TokensOf::Bytes => Tokens::bytes(),
                TokensOf::Characters => {
                    let both = [train.utf8(&self.file)?, test.utf8(self.tested())?].concat();
                    Tokens::characters(&both, self.vocabulary)?
                }
                TokensOf::Bpe => Tokens::learned(&train.utf8(&self.file)?, self.vocabulary)?,
            },
        };
        if tokens.len() < 2 {
            let problem =
                "there is nothing to learn where every token is the same; give another text";
            return Err(Error::setting("dataset.file", &self.file.display(), problem));
        }
        let names: Arc<[String]> = tokens.names().into();
        let blocks = |text: &Text, path: &Path, field, limit: Option<usize>| -> Result<Blocks> {
            let mut ids: Vec<u32> = if tokens.are_bytes() {
                text.bytes.iter().map(|byte| u32::from(*byte)).collect()
            } else {
                tokens.encode(&text.utf8(path)?)?
            };
            if ids.len() <= self.length {
                let problem = format!(
                    "the text of {} has {} tokens, and a block of dataset.length = {} needs one more than that; give a \
                     longer text, or write a smaller length",
                    if field == "dataset.file" { "the training set" } else { "the test set" },
                    ids.len(),
                    self.length
                );
                return Err(Error::setting(field, &path.display(), problem));
            }
            let tokens = ids.len();
            ids.truncate(
                limit.map_or(tokens, |limit| limit.saturating_mul(self.length).saturating_add(1)),
            );
            let bytes_per_token = text.bytes.len() as f64 / tokens as f64;
            Ok(Blocks { ids, length: self.length, names: names.clone(), bytes_per_token })
        };
        let Selection { train: most, test: most_tested, .. } = reading.samples;
        let train = blocks(&train, &self.file, "dataset.file", most)?;
        let tested = self.tested();
        let field =
            if self.test_file.is_some() { "dataset.test_file" } else { "samples.test_share" };
        let test = blocks(&test, tested, field, most_tested)?;
        Ok(Data {
            warnings: files::twice(&files).into_iter().collect(),
            vocabulary: Some(tokens.to_json()?),
            ..Data::new(train, test, files)
        })
    }
}

impl PlainText {
    /// What a recipe says of the text in `file`, tested on `test` where there is one, and what it is, in words: by
    /// characters if there are not too many different ones, by bytes if it is not UTF-8, else by learned tokens.
    pub(crate) fn found(file: &Path, test: Option<&Path>) -> Result<(Self, String)> {
        let mut found =
            Self { file: file.into(), test_file: test.map(Into::into), ..Self::default() };
        let (mut bytes, mut different) = (0, BTreeSet::new());
        for path in [Some(file), test].into_iter().flatten() {
            let text = read(path, "dataset.file")?;
            bytes += text.bytes.len() as u64;
            match str::from_utf8(&text.bytes) {
                Ok(text) => different.extend(text.chars()),
                Err(_) => found.tokens = TokensOf::Bytes,
            }
        }
        let (bytes, characters) = (grouped(bytes), grouped(different.len() as u64));
        if found.tokens == TokensOf::Bytes {
            return Ok((found, format!("{bytes} bytes, not UTF-8; tokens are bytes")));
        }
        let mut tokens = "tokens are characters".to_owned();
        if different.len() > found.vocabulary {
            found.tokens = TokensOf::Bpe;
            tokens = format!("{} tokens are learned from it", grouped(found.vocabulary as u64));
        }
        Ok((found, format!("{bytes} bytes, {characters} different characters; {tokens}")))
    }

    /// The file that the test set comes from.
    fn tested(&self) -> &Path {
        self.test_file.as_ref().unwrap_or(&self.file)
    }
}

/// Part of a file, and the byte of the file that it begins with.
struct Text {
    bytes: Vec<u8>,
    start: usize,
}

/// The whole file `path`, which the setting `field` names.
fn read(path: &Path, field: &'static str) -> Result<Text> {
    let failed = |cause: io::Error| match cause.kind() {
        io::ErrorKind::NotFound => {
            let problem = "there is no such file; name one with --data FILE, or write this setting";
            Error::setting(field, &path.display(), problem)
        }
        _ => Error::read(path)(cause),
    };
    if std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir()) {
        return Err(files::no_plain_file(path));
    }
    let contents = unpacked(path, files::bounded(path, LIMIT, failed)?, LIMIT)?;
    if contents.is_empty() {
        return Err(files::empty(path, "a text"));
    }
    Ok(Text { bytes: contents, start: 0 })
}

impl Text {
    /// Takes the last `share` of the text away, from the beginning of a character on.
    fn split(&mut self, share: f64) -> Self {
        let mut at = self.bytes.len() - (self.bytes.len() as f64 * share).round() as usize;
        while at > 0 && self.bytes.get(at).is_some_and(|byte| byte & 0xc0 == 0x80) {
            at -= 1;
        }
        Self { bytes: self.bytes.split_off(at), start: self.start + at }
    }

    /// The text as characters.
    fn utf8(&self, path: &Path) -> Result<String> {
        let text = str::from_utf8(&self.bytes).map_err(|error| {
            let at = self.start + error.valid_up_to();
            let cause = io::Error::other(format!(
                "byte {at} is not UTF-8; convert the file to UTF-8, or write dataset.tokens = \"bytes\""
            ));
            Error::read(path)(cause)
        })?;
        Ok(text.to_owned())
    }
}

/// A text in blocks of `length` tokens.
struct Blocks {
    ids: Vec<u32>,
    length: usize,
    names: Arc<[String]>,
    bytes_per_token: f64,
}

impl Dataset for Blocks {
    fn len(&self) -> usize {
        (self.ids.len() - 1) / self.length
    }

    fn classes(&self) -> &[String] {
        &self.names
    }

    fn shape(&self) -> Shape {
        Shape::Sequence { vocabulary: self.names.len(), length: self.length }
    }

    /// That of the text in full, whatever part of it the blocks are.
    fn bytes_per_token(&self) -> Option<f64> {
        Some(self.bytes_per_token)
    }

    /// With `augment`, all blocks of an epoch begin up to `length - 1` tokens later, by seed and epoch: another epoch
    /// cuts the text elsewhere. The last block then ends with the text.
    fn batch(&self, indices: &[u32], augment: Option<&Augment>, into: &mut Batch) {
        let shift = augment.map_or(0, |Augment { seed, epoch, .. }| {
            let mut stream = RandomStream::keyed(Purpose::Augment, *seed, *epoch, u64::MAX);
            stream.below(self.length as u32) as usize
        });
        let mut ids = std::mem::take(&mut into.features).into_ids();
        into.labels.clear();
        for index in indices {
            let start =
                (*index as usize * self.length + shift).min(self.ids.len() - 1 - self.length);
            ids.extend_from_slice(&self.ids[start..][..self.length]);
            into.labels.extend_from_slice(&self.ids[start + 1..][..self.length]);
        }
        into.features = Features::Sequences { ids, length: self.length };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::augment::Augmentation;
    use crate::dataset::batch_of;

    const TEXT: &str = "abcdefghijklmnopqrstuvwxyzäöü 0123456789 abcdefghijklmnopqrstuvwxyzäöü";

    /// What comes of `text` with these settings on top of blocks of four characters.
    fn loaded(text: &[u8], settings: impl FnOnce(&mut PlainText)) -> Result<Data> {
        selected(text, Selection::default(), settings)
    }

    fn selected(
        text: &[u8],
        samples: Selection,
        settings: impl FnOnce(&mut PlainText),
    ) -> Result<Data> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("input.txt");
        fs::write(&file, text).unwrap();
        let mut config = PlainText { file, length: 4, ..PlainText::default() };
        settings(&mut config);
        let reading = Reading { scratch: dir.path(), samples, vocabulary: None };
        crate::Config::Text(config).load_as(&reading)
    }

    #[test]
    fn every_token_has_the_next_one_as_its_label() {
        let data = loaded(TEXT.as_bytes(), |_| {}).unwrap();
        let tokens = Tokens::from_json(data.vocabulary.as_ref().unwrap()).unwrap();
        let decoded = |ids: &[u32]| tokens.decode(ids).unwrap();
        let batch = batch_of(&*data.train, &[2, 0], None);
        assert_eq!((batch.len(), batch.labels.len()), (2, 8));
        let Features::Sequences { ids, length: 4 } = &batch.features else { panic!() };
        assert_eq!((decoded(ids), decoded(&batch.labels)), ("ijklabcd".into(), "jklmbcde".into()));
        // A tenth of the text, and not half a character, is tested on.
        assert_eq!(decoded(&batch_of(&*data.test, &[0], None).labels), "zäöü");
        assert_eq!(data.test.bytes_per_token(), Some(8.0 / 5.0));
        // Held-out blocks are of the training text.
        let held_out = data.hold_out(0.5, 1).unwrap();
        assert_eq!(held_out.test.bytes_per_token(), held_out.train.bytes_per_token());
        assert_eq!(held_out.test.bytes_per_token(), Some(68.0 / 65.0));
    }

    #[test]
    fn so_many_blocks_are_taken_from_the_beginning() {
        let samples = Selection {
            train: Some(3),
            test: Some(1),
            test_share: Some(0.5),
            ..Selection::default()
        };
        let data = selected(TEXT.as_bytes(), samples, |_| {}).unwrap();
        assert_eq!((data.train.len(), data.test.len()), (3, 1));
        let all = loaded(TEXT.as_bytes(), |_| {}).unwrap();
        let first = |data: &Data| batch_of(&*data.train, &[0, 1, 2], None);
        assert_eq!(first(&data), first(&all));
        let most = Selection { train: Some(usize::MAX), ..Selection::default() };
        let data = selected(TEXT.as_bytes(), most, |_| {}).unwrap();
        assert_eq!(data.train.len(), all.train.len());
    }

    #[test]
    fn another_epoch_cuts_the_text_elsewhere_and_sees_all_of_it() {
        let train = loaded(TEXT.as_bytes(), |_| {}).unwrap().train;
        let mut firsts = BTreeSet::new();
        let all: Vec<u32> = (0..train.len() as u32).collect();
        for epoch in 1..20 {
            let augment = Augment { seed: 3, epoch, how: Augmentation::default() };
            let batch = batch_of(&*train, &all, Some(&augment));
            assert_eq!(batch, batch_of(&*train, &all, Some(&augment)));
            firsts.insert(batch.labels[0]);
        }
        assert_eq!(firsts.len(), 4);
    }

    /// Blocks begin later than they lie, so that the last one before the held-out end would reach into it.
    #[test]
    fn no_training_block_reaches_into_the_text_that_is_held_out() {
        // Of each block of four tokens, the number of the block.
        let text: Vec<u8> = (0..400).map(|place| (place / 4) as u8).collect();
        let bytes = |settings: &mut PlainText| settings.tokens = TokensOf::Bytes;
        let data = loaded(&text, bytes).unwrap();
        let blocks = data.train.len();
        assert!(data.clone().hold_out(f64::INFINITY, 1).is_err());
        let data = data.hold_out(0.25, 1).unwrap();
        let held = data.test.len();
        assert_eq!(data.train.len(), blocks - held - 1);
        let first = (blocks - held) as u32;
        let of = |set: &Arc<dyn Dataset>, augment: Option<&Augment>| {
            let all: Vec<u32> = (0..set.len() as u32).collect();
            let batch = batch_of(&**set, &all, augment);
            let Features::Sequences { ids, .. } = batch.features else { panic!("no text") };
            [ids, batch.labels].concat()
        };
        assert_eq!(of(&data.test, None).into_iter().min(), Some(first));
        for epoch in 1..20 {
            let augment = Augment { seed: 3, epoch, how: Augmentation::default() };
            assert!(of(&data.train, Some(&augment)).into_iter().all(|id| id < first), "{epoch}");
        }
    }

    #[test]
    fn a_packed_text_and_a_tokenizer_of_ones_own_are_read() {
        let plain = loaded(TEXT.as_bytes(), |_| {}).unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        io::Write::write_all(&mut packed, TEXT.as_bytes()).unwrap();
        let unpacked = loaded(&packed.finish().unwrap(), |_| {}).unwrap();
        let all: Vec<u32> = (0..plain.train.len() as u32).collect();
        let of = |data: &Data| batch_of(&*data.train, &all, None);
        assert_eq!(of(&unpacked), of(&plain));

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        fs::write(&path, Tokens::learned(TEXT, 270).unwrap().to_json().unwrap()).unwrap();
        let own = loaded(&TEXT.repeat(3).into_bytes(), |c| c.tokenizer = Some(path.clone()));
        let tokens = Tokens::from_json(&own.as_ref().unwrap().vocabulary.clone().unwrap()).unwrap();
        let first = of(&own.unwrap()).labels;
        assert!(tokens.len() > 256 && TEXT.contains(&tokens.decode(&first[..4]).unwrap()));
        fs::write(&path, "{}").unwrap();
        assert!(loaded(TEXT.as_bytes(), |c| c.tokenizer = Some(path)).is_err());
    }

    #[test]
    fn a_text_that_is_tested_on_itself_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("again.txt");
        fs::write(&path, TEXT).unwrap();
        let data = loaded(TEXT.as_bytes(), |c| c.test_file = Some(path)).unwrap();
        assert!(data.warnings[0].contains("input.txt and again.txt have the same contents"));
    }

    #[test]
    fn what_cannot_be_learned_from_is_refused() {
        type Settings = fn(&mut PlainText);
        let cases: [(&[u8], Settings, &str); 8] = [
            (b"", |_| {}, "empty"),
            (b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", |_| {}, "nothing to learn"),
            (b"abcdefghij", |_| {}, "the test set has 1 tokens"),
            (TEXT.as_bytes(), |c| c.length = 65, "the training set has 65 tokens"),
            (b"abcdefg\xffabcdefghijklmnopqrstuvwxyz", |_| {}, "byte 7 is not UTF-8"),
            (TEXT.as_bytes(), |c| c.vocabulary = 3, "allows 3"),
            (TEXT.as_bytes(), |c| c.tokens = TokensOf::Bpe, "needs one more than that"),
            (TEXT.as_bytes(), |c| c.test_file = Some("none.txt".into()), "dataset.test_file"),
        ];
        for (text, settings, problem) in cases {
            let error = loaded(text, settings).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
        for (train, test_share, problem) in [
            (Some(0), None, "samples.train"),
            (None, Some(1.0), "between 0 and 1"),
            (None, Some(f64::NAN), "between 0 and 1"),
        ] {
            let samples = Selection { train, test_share, ..Selection::default() };
            let error = selected(TEXT.as_bytes(), samples, |_| {}).err().unwrap().to_string();
            assert!(error.contains(problem), "{error}");
        }
        let bytes =
            loaded(b"abcdefg\xffabcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz", |c| {
                c.tokens = TokensOf::Bytes;
            });
        assert_eq!(batch_of(&*bytes.unwrap().train, &[1], None).labels[..3], [102, 103, 255]);
    }
}
