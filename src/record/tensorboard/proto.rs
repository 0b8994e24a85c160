//! Protocol buffers' messages that no crate has types for, field by field.

use protobuf::{CodedOutputStream, ProtobufResult};

/// A message in the encoding of protocol buffers. Fields are written in the order of the calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn text(self, field: u32, value: &str) -> Self {
        self.with(|out| out.write_string(field, value))
    }

    pub(super) fn number(self, field: u32, value: f64) -> Self {
        self.with(|out| out.write_double(field, value))
    }

    pub(super) fn flag(self, field: u32, value: bool) -> Self {
        self.with(|out| out.write_bool(field, value))
    }

    pub(super) fn choice(self, field: u32, value: i32) -> Self {
        self.with(|out| out.write_enum(field, value))
    }

    pub(super) fn message(self, field: u32, value: &Self) -> Self {
        self.with(|out| out.write_bytes(field, &value.0))
    }

    pub(super) fn messages(self, field: u32, values: impl IntoIterator<Item = Self>) -> Self {
        values.into_iter().fold(self, |message, value| message.message(field, &value))
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn with(mut self, write: impl FnOnce(&mut CodedOutputStream) -> ProtobufResult<()>) -> Self {
        let mut out = CodedOutputStream::vec(&mut self.0);
        write(&mut out).and_then(|()| out.flush()).expect("invariant: a vector takes all bytes");
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_the_specification_says() {
        // The examples of protobuf.dev/programming-guides/encoding: a string, a message within.
        let inner = Message::default().text(2, "testing");
        assert_eq!(inner.0, b"\x12\x07testing");
        let outer = Message::default().message(3, &Message::default().choice(1, 150));
        assert_eq!(outer.0, b"\x1a\x03\x08\x96\x01");
        let other = Message::default().flag(4, true).number(2, 1.0);
        assert_eq!(other.into_bytes(), b"\x20\x01\x11\0\0\0\0\0\0\xf0\x3f");
        let two = Message::default().messages(1, [Message::default(), inner]);
        assert_eq!(two.0, b"\x0a\x00\x0a\x09\x12\x07testing");
    }
}
