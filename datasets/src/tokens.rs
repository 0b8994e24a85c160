//! A text to continue as numbers: by characters, bytes, or learned pieces of words, and back.

use std::collections::HashMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{
    NormalizerWrapper, PostProcessorWrapper, Tokenizer, TokenizerBuilder, TokenizerImpl,
};

use crate::error::{Error, Result};

/// The most tokens that a vocabulary may have.
pub(crate) const LARGEST_VOCABULARY: usize = 1 << 20;

/// Texts are given to a learned tokenizer in pieces of about so many bytes, cut after a line.
const PIECE: usize = 1 << 16;

/// How a text becomes tokens, and tokens a text.
///
/// ```
/// use gradwire_datasets::Tokens;
///
/// let tokens = Tokens::characters("to be or not", 256)?;
/// let ids = tokens.encode("robot")?;
/// assert_eq!(tokens.decode(&ids)?, "robot");
/// assert!(tokens.encode("Robot").unwrap_err().to_string().contains("'R'"));
/// # Ok::<(), gradwire_datasets::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tokens(TokenKind);

#[derive(Clone, Debug)]
enum TokenKind {
    /// Every character that occurs, in the order of their numbers in Unicode.
    Characters { all: Vec<char>, ids: HashMap<char, u32> },
    /// The 256 bytes.
    Bytes,
    /// A tokenizer of the library `tokenizers`.
    Learned(Box<Tokenizer>),
}

/// What is kept with a model; a learned tokenizer has the JSON of its library.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
enum Kept {
    Characters(String),
    Bytes(u32),
}

impl Tokens {
    /// One token for every character of `text`, of which at most `most` may be different.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] when there are more.
    pub fn characters(text: &str, most: usize) -> Result<Self> {
        let mut all: Vec<char> = text.chars().collect();
        all.sort_unstable();
        all.dedup();
        if all.len() > most {
            return Err(Error::vocabulary(format!(
                "the text has {} different characters, and dataset.vocabulary allows {most}; raise it, or write \
                 dataset.tokens = \"bytes\" or \"bpe\"",
                all.len()
            )));
        }
        let ids = all.iter().copied().zip(0..).collect();
        Ok(Self(TokenKind::Characters { all, ids }))
    }

    /// One token for each of the 256 bytes.
    #[must_use]
    pub fn bytes() -> Self {
        Self(TokenKind::Bytes)
    }

    /// Learns at most `size` tokens from `text` by byte pair encoding (Sennrich, Haddow and Birch 2016) of bytes, as
    /// GPT-2 has it: no text is without tokens. The same text gives the same tokens.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] when the library refuses.
    pub fn learned(text: &str, size: usize) -> Result<Self> {
        let bytes = ByteLevel::new(false, true, true);
        let tokenizer: tokenizers::Result<
            TokenizerImpl<_, NormalizerWrapper, _, PostProcessorWrapper, _>,
        > = TokenizerBuilder::new()
            .with_model(BPE::default())
            .with_pre_tokenizer(Some(bytes))
            .with_decoder(Some(bytes))
            .build();
        let mut tokenizer = tokenizer.map_err(Error::vocabulary)?;
        let mut trainer = BpeTrainer::builder()
            .vocab_size(size)
            .show_progress(false)
            .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
            .build();
        tokenizer.train(&mut trainer, pieces(text)).map_err(Error::vocabulary)?;
        Self::from_json(&tokenizer.to_string(false).map_err(Error::vocabulary)?)
    }

    /// Reads what [`to_json`](Self::to_json) wrote, or a `tokenizer.json` of the library `tokenizers`.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] when it is neither, or has too many tokens.
    pub fn from_json(json: &str) -> Result<Self> {
        match serde_json::from_str(json) {
            Ok(Kept::Characters(all)) => Self::characters(&all, usize::MAX),
            Ok(Kept::Bytes(256)) => Ok(Self::bytes()),
            _ => {
                let mut tokenizer = Tokenizer::from_str(json).map_err(Error::vocabulary)?;
                // What cuts or fills single texts would do so to every piece of a long one.
                tokenizer.with_truncation(None).map_err(Error::vocabulary)?.with_padding(None);
                let tokens = Self(TokenKind::Learned(Box::new(tokenizer)));
                if tokens.len() > LARGEST_VOCABULARY {
                    let last = tokens.len() - 1;
                    return Err(Error::vocabulary(format!(
                        "it has a token of the number {last}, and at most {LARGEST_VOCABULARY} tokens are possible"
                    )));
                }
                Ok(tokens)
            }
        }
    }

    /// The tokens as JSON, to be kept with a trained model.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] when the library refuses.
    pub fn to_json(&self) -> Result<String> {
        let kept = match &self.0 {
            TokenKind::Characters { all, .. } => Kept::Characters(all.iter().collect()),
            TokenKind::Bytes => Kept::Bytes(256),
            TokenKind::Learned(tokenizer) => {
                return tokenizer.to_string(false).map_err(Error::vocabulary);
            }
        };
        serde_json::to_string(&kept).map_err(Error::vocabulary)
    }

    /// Whether a token is a byte, so that what is not UTF-8 has tokens too.
    pub(crate) fn are_bytes(&self) -> bool {
        matches!(self.0, TokenKind::Bytes)
    }

    /// One more than the largest id.
    pub fn len(&self) -> usize {
        match &self.0 {
            TokenKind::Characters { all, .. } => all.len(),
            TokenKind::Bytes => 256,
            TokenKind::Learned(tokenizer) => {
                tokenizer.get_vocab(true).into_values().max().map_or(0, |last| last as usize + 1)
            }
        }
    }

    /// Whether there is no token at all.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The ids of the tokens of `text`.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] names the first character that has none and where it stands.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.0 {
            TokenKind::Characters { ids, .. } => {
                let id = |(at, character)| {
                    ids.get(&character).copied().ok_or_else(|| {
                        Error::vocabulary(format!(
                            "it has no token for {character:?} (byte {at}): the text that it was made from has no such \
                             character; write dataset.tokens = \"bytes\" where texts differ in their characters"
                        ))
                    })
                };
                text.char_indices().map(id).collect()
            }
            TokenKind::Bytes => Ok(text.bytes().map(u32::from).collect()),
            TokenKind::Learned(tokenizer) => {
                let mut ids = Vec::new();
                for piece in pieces(text) {
                    let encoding =
                        tokenizer.encode_fast(piece, false).map_err(Error::vocabulary)?;
                    ids.extend(encoding.get_ids());
                }
                Ok(ids)
            }
        }
    }

    /// The text of these tokens; what is no UTF-8 shows as �.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] names an id that there is not.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        let all = self.len();
        if let Some(unknown) = ids.iter().find(|id| **id as usize >= all) {
            return Err(Error::vocabulary(format!("it has no token {unknown}")));
        }
        Ok(match &self.0 {
            TokenKind::Characters { all, .. } => ids.iter().map(|id| all[*id as usize]).collect(),
            TokenKind::Bytes => {
                let bytes: Vec<u8> = ids.iter().map(|id| *id as u8).collect();
                String::from_utf8_lossy(&bytes).into_owned()
            }
            TokenKind::Learned(tokenizer) => {
                tokenizer.decode(ids, false).map_err(Error::vocabulary)?
            }
        })
    }

    /// Every token as text, in the order of their ids.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |id: u32| match &self.0 {
            TokenKind::Characters { all, .. } => all[id as usize].to_string(),
            TokenKind::Bytes => format!("{id:#04x}"),
            TokenKind::Learned(tokenizer) => tokenizer.id_to_token(id).unwrap_or_default(),
        };
        (0..self.len() as u32).map(name).collect()
    }
}

/// `text` in pieces of at least [`PIECE`] bytes, each up to the end of a line; where the line is longer than another such
/// piece, up to the white space with which the next word begins.
fn pieces(text: &str) -> impl Iterator<Item = &str> + Send {
    let mut rest = text;
    std::iter::from_fn(move || {
        let bytes = rest.as_bytes();
        let line_end = bytes.iter().skip(PIECE).take(PIECE).position(|byte| *byte == b'\n');
        let later = || bytes.iter().skip(2 * PIECE).position(|byte| b" \n".contains(byte));
        let space = || later().map(|at| 2 * PIECE + at);
        let end = line_end.map(|at| PIECE + at + 1).or_else(space);
        let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after;
        (!piece.is_empty()).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str =
        "To be, or not to be: that is the question.\nWhether 'tis nobler in the mind to suffer\n";

    fn kinds(text: &str) -> [Tokens; 3] {
        [
            Tokens::characters(text, usize::MAX).unwrap(),
            Tokens::bytes(),
            Tokens::learned(text, 300).unwrap(),
        ]
    }

    #[test]
    fn tokens_are_the_same_after_they_were_kept() {
        for tokens in kinds(TEXT) {
            let json = tokens.to_json().unwrap();
            let kept = Tokens::from_json(&json).unwrap();
            assert_eq!(kept.to_json().unwrap(), json);
            assert_eq!((kept.len(), kept.names()), (tokens.len(), tokens.names()));
            assert_eq!(kept.encode("not to be").unwrap(), tokens.encode("not to be").unwrap());
            assert!(tokens.decode(&[tokens.len() as u32]).is_err());
        }
        assert_eq!(
            Tokens::learned(TEXT, 300).unwrap().to_json().unwrap(),
            Tokens::learned(TEXT, 300).unwrap().to_json().unwrap()
        );
        for json in ["", "{}", "{\"bytes\":255}", "{\"characters\":3}"] {
            assert!(matches!(Tokens::from_json(json), Err(Error::Vocabulary { .. })), "{json}");
        }
        // A number decides how many names there are to keep.
        let [_, _, learned] = kinds(TEXT);
        let json = learned.to_json().unwrap();
        let last = format!(":{}", learned.len() - 1);
        for far in [":1048576", ":4294967295"] {
            let hostile = json.replace(&last, far);
            assert_ne!(hostile, json);
            let error = Tokens::from_json(&hostile).err().unwrap().to_string();
            assert!(error.contains("at most 1048576 tokens"), "{error}");
        }
    }

    /// What a `tokenizer.json` says of single texts: 10^12 tokens would be made room for.
    #[test]
    fn a_text_is_neither_cut_nor_filled() {
        let [_, _, learned] = kinds(TEXT);
        let json = learned.to_json().unwrap();
        let truncation = r#""truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":5}"#;
        let padding = r#""padding":{"strategy":{"Fixed":1000000000000},"direction":"Right","pad_to_multiple_of":null,"pad_id":0,"pad_type_id":0,"pad_token":"!"}"#;
        for (absent, present) in
            [(r#""truncation":null"#, truncation), (r#""padding":null"#, padding)]
        {
            let other = json.replace(absent, present);
            assert_ne!(other, json);
            let other = Tokens::from_json(&other).unwrap();
            assert_eq!(other.encode(TEXT).unwrap(), learned.encode(TEXT).unwrap());
            assert_eq!(other.to_json().unwrap(), json);
        }
    }

    #[test]
    fn frequent_words_become_one_token() {
        let [characters, bytes, learned] =
            kinds(TEXT).map(|tokens| tokens.encode(TEXT).unwrap().len());
        assert_eq!((characters, bytes), (TEXT.len(), TEXT.len()));
        assert!(learned < TEXT.len() * 3 / 4, "{learned}");
    }

    #[test]
    fn more_characters_than_allowed_are_refused() {
        let error = Tokens::characters("abc", 2).unwrap_err().to_string();
        assert!(error.contains("3 different characters") && error.contains("allows 2"), "{error}");
    }

    #[test]
    fn pieces_end_with_lines() {
        let line = "x".repeat(PIECE / 3) + "\n";
        let text = line.repeat(10);
        let all: Vec<&str> = pieces(&text).collect();
        assert_eq!(all.concat(), text);
        assert!(all.len() > 2 && all.iter().all(|piece| piece.ends_with('\n')));
        assert_eq!(pieces("").count(), 0);
        let text = "word ".repeat(PIECE);
        let all: Vec<&str> = pieces(&text).collect();
        assert_eq!(all.concat(), text);
        assert!(all.len() > 1 && all.iter().skip(1).all(|piece| piece.starts_with(" word ")));
    }

    proptest! {
        #[test]
        fn every_text_comes_back(text: String) {
            for tokens in kinds(&text) {
                prop_assert_eq!(&tokens.decode(&tokens.encode(&text).unwrap()).unwrap(), &text);
            }
        }
    }
}
