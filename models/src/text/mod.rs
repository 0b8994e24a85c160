//! Text classifiers over token ids: three ways to make one vector of a text's word embeddings.

pub mod bilstm;
pub mod fasttext;
pub mod textcnn;
