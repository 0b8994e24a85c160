//! A question in words, such as `accuracy within 1 point of dense`, as claims that an experiment
//! tests.
//!
//! ```text
//! question = [ARM ":"] measure ["at" LINK] bound
//! measure  = "accuracy" | "best accuracy" | "loss" | "test loss" | "bits per parameter" | "reduction"
//!          | "step seconds" | "seconds to loss" | "steps to loss" | "encode seconds"
//!          | "decode seconds" | "downlink bytes"
//! bound    = "within" N unit "of" ARM
//!          | ("at least" | "at most") N unit
//!          | ("at least" | "at most") N unit ("above" | "below") ARM
//!          | ["at least" | "at most"] N "times as fast as" ARM
//!          | ("at least" | "at most") N "times that of" ARM
//!          | ["at least" | "at most"] N "% less than" ARM
//! ```
//!
//! The unit of an accuracy is `%`, that of a difference of accuracies `point` or `points`; `within N %`
//! of another measure is a ratio. Seconds and steps to a loss are compared with an arm: the loss is the one that
//! both end below. Words may be joined by `-`.

use crate::claim::{Claim, Compare, Measure};
use crate::experiment::Choice;
use crate::results::Unit;
use anyhow::{Context, Result, bail, ensure};
use gradwire_exchange::network::Link;

/// A question about the arms of an experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// As it was asked, without the arm before the colon.
    text: String,
    /// The arm that it is about, by name with or without values; absent for every arm but the one that
    /// they are compared with.
    arm: Option<String>,
    /// What is measured, on which link, how it is compared and with which bounds; of no task and no arm yet.
    asked: Claim,
}

impl Question {
    /// Reads a question.
    ///
    /// # Errors
    /// Names the word that is not understood and what may stand there.
    pub fn parse(text: &str) -> Result<Self> {
        Self::read(text).with_context(|| {
            format!("--ask {text:?}; ask for example \"accuracy within 1 point of dense\"")
        })
    }

    fn read(text: &str) -> Result<Self> {
        let (arm, text) = match text.split_once(':') {
            Some((arm, text)) => (Some(arm.trim().to_string()), text.trim()),
            None => (None, text.trim()),
        };
        let spaced = text.replace('%', " % ");
        let mut words = QuestionWords(spaced.split_whitespace().collect());
        let measure = words.measure()?;
        let link = words.link()?;
        ensure!(
            measure.needs_link() == link.is_some(),
            "{} {}",
            measure.words(),
            if link.is_some() { "has nothing to do with a link" } else { "needs a link: at 1gbit" }
        );
        let asked = Claim { measure, link, seeds: 2, ..words.bound(measure)? };
        ensure!(words.0.is_empty(), "{:?} is left over", words.0.join(" "));
        Ok(Self { text: text.into(), arm, asked })
    }

    /// The link that it names.
    pub fn link(&self) -> Option<&str> {
        self.asked.link.as_deref()
    }

    /// Whether it is answered by timing schemes on a recorded gradient.
    pub fn is_timed(&self) -> bool {
        self.asked.measure.is_timed()
    }

    /// The question, of every task and arm that it is about.
    ///
    /// # Errors
    /// When it names an arm that is not there, or a name that several arms have.
    pub fn claims(&self, tasks: &[Choice], arms: &[Choice]) -> Result<Vec<Claim>> {
        let name = |choice: &Choice| choice.label.name.clone();
        let there = || arms.iter().map(name).collect::<Vec<_>>().join(", ");
        let against = match &self.asked.against {
            None => None,
            Some(word) => {
                let exact = arms.iter().find(|arm| arm.label.name == *word);
                let fitting: Vec<&Choice> = arms.iter().filter(|arm| arm.matches(word)).collect();
                match (exact, fitting.as_slice()) {
                    (Some(arm), _) => Some(name(arm)),
                    (None, [arm]) => Some(name(arm)),
                    (None, []) => {
                        bail!("--ask {:?}: there is no arm {word:?}; arms: {}", self.text, there())
                    }
                    (None, several) => {
                        let names: Vec<String> = several.iter().map(|arm| name(arm)).collect();
                        bail!("--ask {:?}: {word:?} may be {}", self.text, names.join(" or "))
                    }
                }
            }
        };
        let about = |arm: &&Choice| {
            Some(&arm.label.name) != against.as_ref()
                && self.arm.as_ref().is_none_or(|name| arm.matches(name))
        };
        let asked: Vec<&Choice> = arms.iter().filter(about).collect();
        ensure!(!asked.is_empty(), "--ask {:?} is about no arm; arms: {}", self.text, there());
        let claim = |task: &Choice, arm: &Choice| {
            let words = format!("{}: {}", arm.label.label, self.text);
            let of_task =
                if tasks.len() == 1 { String::new() } else { format!(" ({})", task.label.label) };
            Claim {
                claim: words + &of_task,
                task: Some(name(task)),
                arm: name(arm),
                against: against.clone(),
                ..self.asked.clone()
            }
        };
        Ok(tasks.iter().flat_map(|task| asked.iter().map(move |arm| claim(task, arm))).collect())
    }
}

/// The words that are still to be read.
struct QuestionWords<'a>(Vec<&'a str>);

impl QuestionWords<'_> {
    /// Takes these words, if they come next.
    fn take(&mut self, words: &str) -> bool {
        let count = words.split(' ').count();
        let comes = self.0.iter().take(count).copied().eq(words.split(' '));
        if comes {
            self.0.drain(..count);
        }
        comes
    }

    fn next(&mut self, what: &str) -> Result<String> {
        ensure!(!self.0.is_empty(), "{what} is missing at the end");
        Ok(self.0.remove(0).to_string())
    }

    fn measure(&mut self) -> Result<Measure> {
        let all = || Measure::ALL.into_iter().filter(|(_, name, ..)| !name.is_empty());
        for (measure, name, ..) in all() {
            if self.take(name) || self.take(&name.replace(' ', "-")) {
                return Ok(measure);
            }
        }
        let names = all().map(|(_, name, ..)| name).collect::<Vec<_>>().join(", ");
        bail!("it begins with none of what is measured: {names}")
    }

    fn link(&mut self) -> Result<Option<String>> {
        if let ["at", next, ..] = self.0[..]
            && !matches!(next, "least" | "most")
        {
            self.take("at");
            let link = self.next("a link")?;
            Link::parse(&link)?;
            return Ok(Some(link));
        }
        Ok(None)
    }

    fn number(&mut self) -> Result<f64> {
        let word = self.next("a number")?;
        let number = word.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        number.with_context(|| format!("{word:?} stands where a number is expected"))
    }

    /// How the number is compared, with what, and its bounds.
    fn bound(&mut self, measure: Measure) -> Result<Claim> {
        if self.take("within") {
            let number = self.number()?;
            let unit = self.unit(measure, true)?;
            ensure!(self.take("of"), "after the number and its unit comes `of` and an arm");
            let against = Some(self.next("an arm")?);
            let (compare, unit, low, high) = match unit {
                Unit::Percent => {
                    (Compare::Ratio, Unit::Factor, 1.0 - number / 100.0, 1.0 + number / 100.0)
                }
                _ => (Compare::Difference, unit, -number * size(unit), number * size(unit)),
            };
            let (at_least, at_most) = (Some(low), Some(high));
            return Ok(Claim { compare, unit, against, at_least, at_most, ..Claim::default() });
        }
        let (least, most) = (self.take("at least"), self.take("at most"));
        let number = self.number()?;
        let one_sided = |compare, unit, against, number: f64, least: bool| {
            let (at_least, at_most) =
                if least { (Some(number), None) } else { (None, Some(number)) };
            Claim { compare, unit, against, at_least, at_most, ..Claim::default() }
        };
        if self.take("times as fast as") || self.take("× as fast as") {
            ensure!(measure.is_seconds(), "only seconds can be so many times as fast");
            let against = Some(self.next("an arm")?);
            return Ok(one_sided(Compare::SpeedUp, Unit::Factor, against, number, !most));
        }
        if self.take("times that of") || self.take("× that of") {
            ensure!(least || most, "write `at least` or `at most` before {number}");
            let against = Some(self.next("an arm")?);
            return Ok(one_sided(Compare::Ratio, Unit::Factor, against, number, !most));
        }
        if self.take("% less than") {
            let against = Some(self.next("an arm")?);
            let saved = number / 100.0;
            return Ok(one_sided(Compare::Saving, Unit::Percent, against, saved, !most));
        }
        ensure!(least || most, "write `within`, `at least` or `at most` before {number}");
        let compared = self.0.iter().any(|word| matches!(*word, "above" | "below"));
        let unit = self.unit(measure, compared)?;
        let number = number * size(unit);
        if !compared {
            ensure!(
                !measure.is_to_loss(),
                "the loss is the one that two arms end below: name the other, as in `at least 30 % less \
                 than dense`"
            );
            return Ok(one_sided(Compare::Value, unit, None, number, least));
        }
        ensure!(unit != Unit::Percent, "write a ratio as `at least 1.05 times that of` an arm");
        let above = self.take("above");
        ensure!(above || self.take("below"), "after the unit comes `above` or `below`");
        let against = Some(self.next("an arm")?);
        let (number, least) = if above { (number, least) } else { (-number, !least) };
        Ok(one_sided(Compare::Difference, unit, against, number, least))
    }

    /// The unit of a number, by the next word, or the measure's own where that word is no unit.
    fn unit(&mut self, measure: Measure, compared: bool) -> Result<Unit> {
        let is_unit = |word| Measure::ALL.iter().any(|(.., units)| units.contains(&word));
        let unit = match self.0.first() {
            Some(&"%") => Some(Unit::Percent),
            Some(&("point" | "points")) => Some(Unit::Points),
            Some(&("times" | "×")) => Some(Unit::Number),
            Some(word) if is_unit(*word) => {
                let own = |(of, _, _, units): &(Measure, _, _, &[&str])| {
                    *of == measure && units.contains(word)
                };
                ensure!(
                    Measure::ALL.iter().any(own),
                    "{} is not measured in {word}",
                    measure.words()
                );
                Some(Unit::Number)
            }
            _ => None,
        };
        if unit.is_some() {
            self.0.remove(0);
        }
        let is_accuracy = matches!(measure, Measure::Accuracy | Measure::BestAccuracy);
        match (unit.unwrap_or_default(), is_accuracy) {
            (Unit::Points, true) if compared => Ok(Unit::Points),
            (Unit::Percent, true) if !compared => Ok(Unit::Percent),
            (_, true) if compared => bail!("write a difference of accuracies in points"),
            (_, true) => bail!("write an accuracy in %"),
            (Unit::Points, false) => bail!("points are for accuracies"),
            (Unit::Percent, false) if !compared => bail!("% is for accuracies and comparisons"),
            (unit, false) => Ok(unit),
        }
    }
}

/// One of a unit as a plain number.
fn size(unit: Unit) -> f64 {
    if matches!(unit, Unit::Percent | Unit::Points) { 0.01 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_understood() {
        for (text, understood) in [
            ("accuracy within 1 point of dense", "Accuracy Difference Points dense -0.01..0.01"),
            (
                "best-accuracy at most 0.5 points below dense",
                "BestAccuracy Difference Points dense -0.005..",
            ),
            ("accuracy at least 1 point above dense", "Accuracy Difference Points dense 0.01.."),
            ("accuracy at least 90%", "Accuracy Value Percent  0.9.."),
            ("loss within 5 % of dense", "Loss Ratio Factor dense 0.95..1.05"),
            ("test loss within 1 % of dense", "TestLoss Ratio Factor dense 0.99..1.01"),
            ("loss at most 0.05 above dense", "Loss Difference Number dense ..0.05"),
            ("bits per parameter at most 1 bit", "BitsPerParameter Value Number  ..1"),
            ("reduction at least 100 times", "Reduction Value Number  100.."),
            (
                "step seconds at 1gbit 2 times as fast as dense",
                "StepSeconds SpeedUp Factor dense 2..",
            ),
            (
                "seconds to loss at 100mbit at least 30 % less than dense",
                "SecondsToLoss Saving Percent dense 0.3..",
            ),
            (
                "steps to loss at most 0.9 times that of dense",
                "StepsToLoss Ratio Factor dense ..0.9",
            ),
            (
                "downlink-bytes at most 0.5 times that of dense",
                "DownlinkBytes Ratio Factor dense ..0.5",
            ),
            (
                "encode seconds at least 3 times as fast as dense",
                "EncodeSeconds SpeedUp Factor dense 3..",
            ),
        ] {
            let question = Question::parse(text).unwrap_or_else(|error| panic!("{error:#}"));
            let Claim { measure, link, compare, unit, against, at_least, at_most, .. } =
                question.asked;
            let end = |end: Option<f64>| end.map_or(String::new(), |end| end.to_string());
            let (against, ends) =
                (against.unwrap_or_default(), [at_least, at_most].map(end).join(".."));
            assert_eq!(
                format!("{measure:?} {compare:?} {unit:?} {against} {ends}"),
                understood,
                "{text}"
            );
            assert_eq!(link.is_some(), measure.needs_link(), "{text}");
        }
    }

    #[test]
    fn what_is_no_question_is_refused_with_the_word() {
        for (text, part) in [
            ("", "begins with none"),
            ("acuracy within 1 point of dense", "best accuracy, loss"),
            ("accuracy within one point of dense", "\"one\""),
            ("accuracy within 1 % of dense", "points"),
            ("accuracy at least 90", "in %"),
            ("accuracy at least 90 points", "in %"),
            ("accuracy 90 %", "`at least`"),
            ("accuracy within 1 point", "`of`"),
            ("accuracy within 1 point of", "an arm is missing"),
            ("accuracy within 1 point of dense and more", "\"and more\" is left over"),
            ("accuracy at 1gbit within 1 point of dense", "nothing to do with a link"),
            ("step seconds 2 times as fast as dense", "at 1gbit"),
            ("step seconds at 1gbat 2 times as fast as dense", "1gbat"),
            ("loss 2 times as fast as dense", "only seconds"),
            ("loss within 1 point of dense", "points are for accuracies"),
            ("seconds to loss at 100mbit at most 60 s", "than dense"),
            ("accuracy at least -1 points above dense", "\"-1\""),
            ("accuracy at least nan %", "\"nan\""),
        ] {
            let error = format!("{:#}", Question::parse(text).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_question_is_asked_of_every_other_arm_and_task() {
        let member = |name: &str, values: &str| -> crate::experiment::Member {
            toml::from_str(&format!("name = {name:?}\nlabel = \"{name} {{r}}\"\n{values}")).unwrap()
        };
        let arms =
            [member("dense", ""), member("topk", "over.r = [0.1, 0.01]"), member("sidco", "")];
        let arms: Vec<Choice> = arms.iter().flat_map(|arm| arm.choices()).collect();
        let tasks: Vec<Choice> =
            ["a", "b"].iter().flat_map(|task| member(task, "").choices()).collect();
        let claims = |text: &str, tasks: &[Choice]| Question::parse(text)?.claims(tasks, &arms);
        let asked = claims("accuracy within 1 point of dense", &tasks).unwrap();
        let of: Vec<String> =
            asked.iter().map(|c| format!("{}/{}", c.task.as_deref().unwrap(), c.arm)).collect();
        assert_eq!(
            of,
            ["a/topk-0.1", "a/topk-0.01", "a/sidco", "b/topk-0.1", "b/topk-0.01", "b/sidco"]
        );
        assert!(asked.iter().all(|claim| claim.against.as_deref() == Some("dense")));
        assert_eq!(claims("topk: accuracy at least 80 %", &tasks[..1]).unwrap().len(), 2);
        assert_eq!(claims("sidco: loss at most 0.1 above topk-0.1", &tasks[..1]).unwrap().len(), 1);
        for (text, part) in [
            ("accuracy within 1 point of dnse", "arms: dense, topk-0.1, topk-0.01, sidco"),
            ("accuracy within 1 point of topk", "topk-0.1 or topk-0.01"),
            ("casq: accuracy at least 80 %", "about no arm"),
        ] {
            let error = format!("{:#}", claims(text, &tasks).unwrap_err());
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
