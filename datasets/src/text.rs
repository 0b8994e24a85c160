//! Words as numbers: the vocabulary, and texts resident as token ids.

use std::str::FromStr;

use tokenizers::models::wordlevel::{WordLevel, WordLevelTrainer};
use tokenizers::normalizers::utils::Lowercase;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::{
    AddedToken, DecoderWrapper, Model, NormalizedString, Normalizer, OffsetReferential, OffsetType,
    PostProcessorWrapper, PreTokenizedString, PreTokenizer, TokenizerBuilder, TokenizerImpl,
    Trainer,
};

use crate::augment::Augment;
use crate::dataset::{Batch, Dataset, Features, Shape};
use crate::definition::{Data, check_count};
use crate::error::{Error, Result};
use crate::files::FileSum;

/// The id that fills up texts which are shorter than the others.
pub const PAD: u32 = 0;
/// The id of every word that is not in the vocabulary.
pub const UNK: u32 = 1;

const PAD_TOKEN: &str = "<pad>";
const UNK_TOKEN: &str = "<unk>";

type Tokenizer =
    TokenizerImpl<WordLevel, Lowercase, BertPreTokenizer, PostProcessorWrapper, DecoderWrapper>;

/// The words a text classifier knows.
///
/// Text is lower-cased and split at white space, and each punctuation character stands for itself.
/// Ids: [`PAD`], [`UNK`], then the words from the most frequent to the rarest, words equally
/// frequent in the order of their characters.
#[derive(Debug)]
pub(crate) struct Vocabulary {
    tokenizer: Tokenizer,
    len: usize,
}

impl Vocabulary {
    /// The most frequent words of `texts`: at most `size` ids in all, no word that occurs fewer
    /// than `minimum_count` times. Does not depend on the number of threads.
    pub(crate) fn train<'a>(
        texts: impl Iterator<Item = &'a str> + Send,
        size: usize,
        minimum_count: u64,
    ) -> Result<Self> {
        let mut trainer = WordLevelTrainer::builder()
            .vocab_size(size)
            .min_frequency(minimum_count)
            .show_progress(false)
            .special_tokens(
                [PAD_TOKEN, UNK_TOKEN].map(|token| AddedToken::from(token, true)).into(),
            )
            .build()
            .map_err(Error::vocabulary)?;
        let words = |text: &str| {
            let mut words = Vec::new();
            split(text, |word| words.push(word.to_owned()))?;
            Ok(words)
        };
        trainer.feed(texts, words).map_err(Error::vocabulary)?;
        let mut model = WordLevel::default();
        trainer.train(&mut model).map_err(Error::vocabulary)?;
        model.unk_token = UNK_TOKEN.to_owned();
        // The two special tokens are words of the model only: were they told to the tokenizer,
        // it would take "<pad>" in a text for the pad itself.
        let tokenizer = TokenizerBuilder::new()
            .with_model(model)
            .with_normalizer(Some(Lowercase))
            .with_pre_tokenizer(Some(BertPreTokenizer))
            .build();
        Self::checked(tokenizer.map_err(Error::vocabulary)?)
    }

    /// Reads what [`to_json`](Self::to_json) wrote.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] when it is not JSON of a tokenizer, or of one that splits texts
    /// otherwise or numbers its words otherwise than this crate does.
    pub(crate) fn from_json(json: &str) -> Result<Self> {
        let tokenizer = Tokenizer::from_str(json).map_err(Error::vocabulary)?;
        let same_pipeline = tokenizer.get_normalizer().is_some()
            && tokenizer.get_pre_tokenizer().is_some()
            && tokenizer.get_post_processor().is_none()
            && tokenizer.get_truncation().is_none()
            && tokenizer.get_padding().is_none()
            && tokenizer.get_added_vocabulary().is_empty();
        if !same_pipeline {
            return Err(Error::vocabulary(
                "it splits texts otherwise than by lower case, white space and punctuation",
            ));
        }
        Self::checked(tokenizer)
    }

    /// The vocabulary as JSON of the `tokenizers` library, to be kept with a trained model.
    pub(crate) fn to_json(&self) -> Result<String> {
        self.tokenizer.to_string(false).map_err(Error::vocabulary)
    }

    /// The number of ids, [`PAD`] and [`UNK`] included.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// What a person should know of a vocabulary that tells texts apart badly.
    pub(crate) fn warning(&self) -> Option<String> {
        let words = self.len - 2;
        (words < 2).then(|| {
            format!(
                "the vocabulary has {words} word{}: all others are the same to a model. Lower dataset.minimum_count, \
                 or raise dataset.vocabulary",
                if words == 1 { "" } else { "s" }
            )
        })
    }

    /// The ids of the words of `text`.
    pub(crate) fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let model = self.tokenizer.get_model();
        let mut ids = Vec::new();
        split(text, |word| ids.push(model.token_to_id(word).unwrap_or(UNK)))
            .map_err(Error::vocabulary)?;
        Ok(ids)
    }

    /// Checks that ids are 0, 1, 2, … with ours at their places.
    fn checked(tokenizer: Tokenizer) -> Result<Self> {
        let model = tokenizer.get_model();
        let len = model.get_vocab_size();
        let fixed = model.token_to_id(PAD_TOKEN) == Some(PAD)
            && model.token_to_id(UNK_TOKEN) == Some(UNK)
            && model.unk_token == UNK_TOKEN;
        if !fixed {
            return Err(Error::vocabulary("`<pad>` must have the id 0 and `<unk>` the id 1"));
        }
        if let Some(absent) = (0..len as u32).find(|&id| model.id_to_token(id).is_none()) {
            let problem = format!("it has {len} words, but none with the id {absent}");
            return Err(Error::vocabulary(problem));
        }
        Ok(Self { tokenizer, len })
    }
}

/// Calls `each` with the words of `text`, in order, as the tokenizer finds them. The tokenizer
/// keeps track of where each character came from, which takes twenty times as long; so text that
/// is plain ASCII is split here.
fn split(text: &str, mut each: impl FnMut(&str)) -> tokenizers::Result<()> {
    if !text.is_ascii() {
        let mut text = NormalizedString::from(text);
        Lowercase.normalize(&mut text)?;
        let mut words = PreTokenizedString::from(text);
        BertPreTokenizer.pre_tokenize(&mut words)?;
        let words = words.get_splits(OffsetReferential::Normalized, OffsetType::None);
        words.into_iter().for_each(|(word, ..)| each(word));
        return Ok(());
    }
    for word in text.to_ascii_lowercase().split(char::is_whitespace) {
        let mut start = 0;
        for (at, mark) in word.match_indices(|c: char| c.is_ascii_punctuation()) {
            if start < at {
                each(&word[start..at]);
            }
            each(mark);
            start = at + 1;
        }
        if start < word.len() {
            each(&word[start..]);
        }
    }
    Ok(())
}

/// How texts become numbers, as the settings of data sets of texts say it.
#[derive(Clone, Copy)]
pub(crate) struct Words {
    pub(crate) vocabulary: usize,
    pub(crate) minimum_count: u64,
    pub(crate) length: usize,
}

/// Texts, and the class of each.
pub(crate) type Labelled = (Vec<String>, Vec<u32>);

impl Words {
    pub(crate) fn validate(&self) -> Result<()> {
        check_count("dataset.vocabulary", self.vocabulary, 3, 1 << 20)?;
        check_count("dataset.length", self.length, 1, 1 << 16)?;
        match self.minimum_count {
            0 => Err(Error::setting("dataset.minimum_count", &0, "write 1 to keep every word")),
            _ => Ok(()),
        }
    }

    /// What a text looks like to a model.
    pub(crate) fn shape(&self) -> Shape {
        Shape::Text { vocabulary: self.vocabulary, length: self.length }
    }

    /// The data set of these texts, in the words of the training texts, or of an earlier run.
    pub(crate) fn into_data(
        self,
        [train, test]: [Labelled; 2],
        classes: &[String],
        files: Vec<FileSum>,
        earlier: Option<&str>,
    ) -> Result<Data> {
        let vocabulary = match earlier {
            Some(json) => Vocabulary::from_json(json)?,
            None => {
                let texts = train.0.iter().map(String::as_str);
                Vocabulary::train(texts, self.vocabulary, self.minimum_count)?
            }
        };
        let set = |(texts, labels): Labelled| {
            Texts::new(&texts, labels, classes.to_vec(), &vocabulary, self.length)
        };
        Ok(Data {
            warnings: vocabulary.warning().into_iter().collect(),
            vocabulary: Some(vocabulary.to_json()?),
            ..Data::new(set(train)?, set(test)?, files)
        })
    }
}

/// A set of texts.
pub(crate) struct Texts {
    /// The ids of one text after the other, without padding.
    ids: Vec<u32>,
    /// Where each text ends in `ids`.
    ends: Vec<usize>,
    labels: Vec<u32>,
    classes: Vec<String>,
    vocabulary: usize,
    length: usize,
}

impl Texts {
    /// Encodes `texts`, each cut after `length` words. A text without a word becomes one [`UNK`],
    /// so that a mean over its words exists.
    pub(crate) fn new(
        texts: &[impl AsRef<str>],
        labels: Vec<u32>,
        classes: Vec<String>,
        vocabulary: &Vocabulary,
        length: usize,
    ) -> Result<Self> {
        let mut ids = Vec::new();
        let mut ends = Vec::with_capacity(texts.len());
        for text in texts {
            match vocabulary.encode(text.as_ref())?.as_slice() {
                [] => ids.push(UNK),
                words => ids.extend(&words[..words.len().min(length)]),
            }
            ends.push(ids.len());
        }
        ids.shrink_to_fit();
        Ok(Self { ids, ends, labels, classes, vocabulary: vocabulary.len(), length })
    }

    fn words(&self, index: usize) -> &[u32] {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.ids[start..self.ends[index]]
    }
}

impl Dataset for Texts {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn shape(&self) -> Shape {
        Shape::Text { vocabulary: self.vocabulary, length: self.length }
    }

    fn batch(&self, indices: &[u32], _augment: Option<&Augment>, into: &mut Batch) {
        into.labels.clear();
        into.labels.extend(indices.iter().map(|&i| self.labels[i as usize]));
        let mut ids = std::mem::take(&mut into.features).into_ids();
        for (number, &index) in indices.iter().enumerate() {
            ids.extend(self.words(index as usize));
            ids.resize((number + 1) * self.length, PAD);
        }
        into.features = Features::Tokens { ids, length: self.length };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::augment::Augmentation;
    use crate::dataset::batch_of;
    use proptest::prelude::*;

    const TEXTS: [&str; 3] =
        ["The cat sat. The end!", "the dog <pad> sat", "a cat's  <unk> \u{c9}t\u{e9}"];

    fn vocabulary(size: usize, minimum_count: u64) -> Vocabulary {
        Vocabulary::train(TEXTS.into_iter(), size, minimum_count).unwrap()
    }

    fn words(vocabulary: &Vocabulary) -> Vec<String> {
        let model = vocabulary.tokenizer.get_model();
        (0..vocabulary.len() as u32).map(|id| model.id_to_token(id).unwrap()).collect()
    }

    #[test]
    fn ids_go_by_count_then_by_word() {
        let all = "<pad> <unk> the < > cat sat ! ' . a dog end pad s unk \u{e9}t\u{e9}";
        assert_eq!(words(&vocabulary(100, 1)), all.split(' ').collect::<Vec<_>>());
        assert_eq!(words(&vocabulary(5, 1)), ["<pad>", "<unk>", "the", "<", ">"]);
        assert_eq!(words(&vocabulary(100, 3)), ["<pad>", "<unk>", "the"]);
    }

    #[test]
    fn unknown_words_and_spelt_out_pads() {
        let vocabulary = vocabulary(7, 1);
        assert_eq!(vocabulary.encode("The  CAT\tpurred.").unwrap(), [2, 5, UNK, UNK]);
        // "<pad>" in a text is three tokens, none of which is the pad.
        assert_eq!(vocabulary.encode("<pad>").unwrap(), [3, UNK, 4]);
        assert_eq!(vocabulary.encode("  \n ").unwrap(), Vec::<u32>::new());
    }

    #[test]
    fn json_comes_back_and_is_always_the_same() {
        let json = vocabulary(100, 1).to_json().unwrap();
        assert_eq!(json, vocabulary(100, 1).to_json().unwrap());
        let read = Vocabulary::from_json(&json).unwrap();
        assert_eq!(words(&read), words(&vocabulary(100, 1)));
        assert_eq!(read.to_json().unwrap(), json);
        assert_eq!(read.encode("cat. fish").unwrap(), [5, 9, UNK]);
    }

    #[test]
    fn other_tokenizers_are_refused() {
        let json = vocabulary(5, 1).to_json().unwrap();
        let changes = [
            ("\"<\":3", "\"<\":7", "none with the id 3"),
            ("\"<pad>\":0,\"<unk>\":1", "\"<pad>\":1,\"<unk>\":0", "must have the id 0"),
            ("{\"type\":\"Lowercase\"}", "null", "otherwise"),
            ("{\"type\":\"BertPreTokenizer\"}", "null", "otherwise"),
            ("BertPreTokenizer", "Whitespace", ""),
            ("WordLevel", "BPE", ""),
            (
                "\"added_tokens\":[]",
                "\"added_tokens\":[{\"id\":2,\"content\":\"the\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}]",
                "otherwise",
            ),
            ("}", "", ""),
        ];
        for (from, to, problem) in changes {
            let changed = json.replace(from, to);
            assert_ne!(changed, json, "{from}");
            let error = Vocabulary::from_json(&changed).unwrap_err();
            assert!(matches!(error, Error::Vocabulary { .. }));
            assert!(error.to_string().contains(problem), "{error}");
        }
    }

    #[test]
    fn texts_are_cut_and_padded() {
        let vocabulary = vocabulary(100, 1);
        let texts = ["the cat", "", "sat sat sat sat the"];
        let set = Texts::new(
            &texts,
            vec![2, 0, 1],
            ["a", "b", "c"].map(String::from).into(),
            &vocabulary,
            4,
        )
        .unwrap();
        assert_eq!(set.shape(), Shape::Text { vocabulary: 17, length: 4 });
        let augment = Augment { seed: 1, epoch: 1, how: Augmentation::default() };
        let mut batch = batch_of(&set, &[2, 0, 1], Some(&augment));
        assert_eq!(batch.labels, [1, 2, 0]);
        let ids = vec![6, 6, 6, 6, 2, 5, PAD, PAD, UNK, PAD, PAD, PAD];
        assert_eq!(batch.features, Features::Tokens { ids, length: 4 });
        set.batch(&[], None, &mut batch);
        assert_eq!(batch.features, Features::Tokens { ids: vec![], length: 4 });
    }

    proptest! {
        #[test]
        fn words_are_those_of_the_tokenizer(ascii in "[ -~\\t\\n\\r\\x0b\\x0c\\x1f]*", text: String) {
            let all = [ascii.as_str(), text.as_str()];
            let vocabulary = Vocabulary::train(all.into_iter(), 1000, 1).unwrap();
            for text in all {
                let reference = vocabulary.tokenizer.encode_fast(text, false).unwrap();
                let ids = vocabulary.encode(text).unwrap();
                prop_assert_eq!(&ids[..], reference.get_ids());
                prop_assert!(!ids.contains(&UNK) && !ids.contains(&PAD));
            }
        }

        #[test]
        fn any_text_has_ids_below_the_size(text: String, json: String) {
            let vocabulary = vocabulary(10, 1);
            prop_assert!(vocabulary.encode(&text).unwrap().iter().all(|&id| id < 10));
            prop_assert!(Vocabulary::from_json(&json).is_err());
        }
    }
}
