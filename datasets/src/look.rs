//! Which kind of data a path is.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use image::DynamicImage;

use crate::agnews::AgNews;
use crate::cifar::{Cifar10, Cifar100};
use crate::config::Config;
use crate::definition::{SHARE, Selection};
use crate::error::{Error, Result};
use crate::files::of_ones_own;
use crate::images::Size;
use crate::open::arrays::Arrays;
use crate::open::idx;
use crate::open::parquet::{Cell, Parquet};
use crate::open::pictures::{ClassFolders, LARGEST_PICTURE, Pictures, class_names, parts};
use crate::open::table::{self, Column, Columns, TextTable};
use crate::open::{
    LARGEST, contents, entries, file_name, in_order, named, picture, rows, unpacked,
};
use crate::plain_text::PlainText;
use crate::survey::grouped;

/// What was found at a path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Found {
    /// The data set, as a recipe says it.
    pub config: Config,
    /// What it is, in a line.
    pub line: String,
}

/// Finds out which kind of data is at `path`: a file or a folder.
///
/// # Errors
/// When nothing of a known kind is there, with what is wanted; or when what is there cannot be read.
pub fn look(path: &Path) -> Result<Found> {
    let is_folder = path.metadata().map_err(Error::read(path))?.is_dir();
    if is_folder { in_folder(path) } else { in_file(path) }
}

fn in_folder(dir: &Path) -> Result<Found> {
    if let Some(found) = official(dir)? {
        return Ok(found);
    }
    let paths = entries(dir)?;
    if paths.iter().any(|path| idx::is_idx(path)) {
        return arrays(dir, "IDX files");
    }
    if let Some(found) = pictures(dir)? {
        return Ok(found);
    }
    let files: Vec<&PathBuf> = paths.iter().filter(|path| kind(path).is_some()).collect();
    let is = |words: &[&str], path: &Path| {
        let name = file_name(path);
        words.iter().any(|word| name.starts_with(word))
    };
    // One of that name alone: a set in several files is not read in part.
    let only = |words: &[&str]| {
        let mut found = files.iter().filter(|path| is(words, path));
        found.next().filter(|_| found.next().is_none())
    };
    let (train, test) = (only(&["train"]), only(&["test"]).or_else(|| only(&["val", "dev"])));
    let pair = train.zip(test).filter(|(train, test)| kind(train) == kind(test));
    match (files.as_slice(), pair.map(|(train, test)| (kind(train), train, test))) {
        ([file], _) => in_file(file),
        (_, Some((Some("table"), train, test))) => table(train, Some(test)),
        (_, Some((Some("text"), train, test))) => text(train, Some(test)),
        (_, Some((Some("parquet"), train, test))) => parquet(train, Some(test)),
        ([], _) => Err(Error::unfit(
            dir,
            "holds no data that is known: class folders with PNG or JPEG files, IDX files, a .npz, .csv, .tsv, .parquet or .txt file, \
             or the official files of CIFAR-10, CIFAR-100 or AG News",
        )),
        (several, _) => {
            let names: Vec<_> =
                several.iter().filter_map(|path| path.file_name()?.to_str()).collect();
            Err(Error::unfit(
                dir,
                format!("holds several files of data; name one: {}", named(&names)),
            ))
        }
    }
}

/// The kind of a file, by its name.
fn kind(path: &Path) -> Option<&'static str> {
    let name = file_name(path);
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("npz") => Some("npz"),
        Some("csv" | "tsv" | "tab") => Some("table"),
        Some("txt") => Some("text"),
        Some("parquet") => Some("parquet"),
        _ => None,
    }
}

fn in_file(file: &Path) -> Result<Found> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty());
    match kind(file) {
        Some("npz") => arrays(file, "a NumPy file"),
        Some("table") => table(file, None),
        Some("text") => text(file, None),
        Some("parquet") => parquet(file, None),
        _ if idx::is_idx(file) => in_folder(parent.unwrap_or(Path::new("."))),
        _ => {
            official(file)?;
            Err(Error::unfit(
                file,
                "is no file of a known kind, which are .npz, .csv, .tsv, .parquet and .txt; unpack what is packed, make a table \
                 of JSON lines (docs/data-and-recipes.md), and of pictures name the folder that holds their class folders",
            ))
        }
    }
}

fn arrays(path: &Path, what: &str) -> Result<Found> {
    let arrays = Arrays { path: path.into(), ..Arrays::default() };
    let line = format!("{what}: {}", arrays.read(&Selection::default())?.line());
    Ok(Found { config: Config::Arrays(arrays), line })
}

/// A plain text to continue.
fn text(file: &Path, test: Option<&Path>) -> Result<Found> {
    let (text, line) = PlainText::found(file, test)?;
    Ok(Found { config: Config::Text(text), line: format!("a text to continue: {line}") })
}

/// The official files of a data set.
fn official(dir: &Path) -> Result<Option<Found>> {
    let (mut found, mut instead) = (Vec::new(), None);
    for config in Config::all() {
        let Some(files) = config.distribution() else { continue };
        let names = files.files().into_iter().map(|file| file.name);
        match files.place().find(dir, names) {
            // `train.csv` and `test.csv` are anyone's.
            Ok(folder) if folder == dir && !dir.ends_with(files.place().folder) => {
                if files.files().iter().all(|file| dir.join(file.name).is_file()) {
                    found.push((config, files));
                }
            }
            Ok(_) => found.push((config, files)),
            Err(error @ Error::Unfit { .. }) => instead = Some(error),
            Err(_) => {}
        }
    }
    found.retain(|(config, _)| !matches!(config, Config::AgNews(_)) || is_ag_news(dir));
    let (dir, several) = (dir.to_owned(), found.len() > 1);
    let titles: Vec<String> = found.iter().map(|(config, _)| config.name().to_owned()).collect();
    let Some((config, files)) = found.pop() else {
        return instead.map_or(Ok(None), Err);
    };
    if several {
        let problem = format!(
            "holds several data sets: {}; name one by --dataset and the folder by --dir",
            named(&titles)
        );
        return Err(Error::unfit(dir, problem));
    }
    let line = format!("{}: {}", files.title(), config.about().line);
    let config = match config {
        Config::Cifar10(cifar) => Config::Cifar10(Cifar10 { dir, ..cifar }),
        Config::Cifar100(cifar) => Config::Cifar100(Cifar100 { dir, ..cifar }),
        Config::AgNews(news) => Config::AgNews(AgNews { dir, ..news }),
        other => other,
    };
    Ok(Some(Found { config, line }))
}

/// Whether the files are in AG News' folder, or begin as its rows do.
fn is_ag_news(dir: &Path) -> bool {
    let named = |path: &Path| path.ends_with(crate::agnews::PLACE.folder);
    named(dir) || dir.join(crate::agnews::PLACE.folder).is_dir()
}

/// Class folders with pictures.
fn pictures(dir: &Path) -> Result<Option<Found>> {
    let (train, test) = parts(dir)?;
    let classes = in_order(class_names(&train)?);
    if classes.is_empty() {
        return Ok(None);
    }
    let mut files = ClassFolders::find(&train, &classes)?.files;
    if files.is_empty() {
        return Ok(None);
    }
    let tested = match test {
        Some(test) => {
            let tests = ClassFolders::find(&test, &classes)?.files;
            let count = tests.len();
            files.extend(tests);
            count
        }
        None => {
            let classes = files.chunk_by(|a, b| a.1 == b.1).map(<[_]>::len);
            let tested =
                |count: usize| ((count as f64 * SHARE).round() as usize).max(1).min(count - 1);
            classes.map(tested).sum()
        }
    };
    let some = files.iter().step_by(files.len().div_ceil(LOOKED_AT)).map(|(path, _)| {
        let bytes = of_ones_own(path, LARGEST_PICTURE)?;
        picture::decode(&bytes).map_err(|problem| Error::unfit(path, problem))
    });
    let (size, change) = size_of(&some.collect::<Result<Vec<_>>>()?);
    let (path, side, channels) = (dir.into(), size.height, size.channels);
    let folder = Pictures { path, size: side, channels, ..Pictures::default() };
    let is_png = |(path, _): &(PathBuf, u32)| {
        path.extension().is_some_and(|end| end.eq_ignore_ascii_case("png"))
    };
    let formats = match files.iter().filter(|file| is_png(file)).count() {
        0 => "JPEG",
        all if all == files.len() => "PNG",
        _ => "PNG and JPEG",
    };
    let (all, classes, tested) =
        (grouped(files.len() as u64), classes.len(), grouped(tested as u64));
    let line = format!(
        "{all} {formats} images in {classes} class folders, {}{change}; {tested} for testing",
        size.in_words()
    );
    Ok(Some(Found { config: Config::Pictures(folder), line }))
}

/// How many pictures are looked at before the size of all is chosen.
const LOOKED_AT: usize = 64;
/// The sides that a picture of another size, or of a large one, is given.
const SIDES: [u32; 2] = [32, 64];

/// The size that pictures are to have, and what that changes.
fn size_of(some: &[DynamicImage]) -> (Size, &'static str) {
    let sides: HashSet<_> = some.iter().map(|one| (one.width(), one.height())).collect();
    let colour = some.iter().any(|one| one.color().has_color());
    let same = sides
        .iter()
        .copied()
        .find(|(width, height)| sides.len() == 1 && width == height && (8..=96).contains(width));
    let least = sides.iter().map(|(width, height)| *width.min(height)).min().unwrap_or_default();
    let (side, change) = match same {
        Some((side, _)) => (side, ""),
        None => {
            (SIDES[usize::from(least >= SIDES[1])], " once resized (dataset.size, dataset.resize)")
        }
    };
    let size =
        Size { height: side as usize, width: side as usize, channels: if colour { 3 } else { 1 } };
    (size, change)
}

/// What columns of labels are called, and columns of texts.
const NAMES: [&str; 2] = [
    "label labels class category target sentiment topic intent rating stars y",
    "text sentence review content title description body message comment tweet question headline utterance x",
];

/// Whether a column is called by one of the `names`.
fn is_called(column: &str, names: &str) -> bool {
    names.split(' ').any(|name| name == column.trim().to_lowercase())
}

/// Rows that are looked at before columns are chosen.
const ROWS: u64 = 5000;

/// A table of texts, whose columns are guessed by their names, or else by what stands in them.
fn table(file: &Path, test: Option<&Path>) -> Result<Found> {
    let (packed, _) = contents(file)?;
    let bytes = unpacked(file, packed, LARGEST)?;
    let dialect = rows::Dialect { delimiter: table::delimiter(file, &bytes), quotes: true };
    let mut some: Vec<Vec<String>> = Vec::new();
    rows::each(file, &bytes, dialect, |row| {
        if row.number <= ROWS {
            some.push(row.fields());
        }
        Ok(())
    })?;
    guessed(file, test, &some, false)
}

/// A Parquet file of pictures, where it has a column of bytes, or of texts.
fn parquet(file: &Path, test: Option<&Path>) -> Result<Found> {
    let opened = Parquet::open(file)?;
    let names = opened.columns();
    let (places, mut picture): (Vec<usize>, _) = ((0..names.len()).collect(), None);
    opened.rows(&places, 1, |_, cells| {
        picture = cells.iter().position(|cell| matches!(cell, Cell::Bytes(_)));
        Ok(())
    })?;
    let Some(image) = picture else {
        let mut some = vec![names];
        opened.rows(&places, ROWS as usize, |_, cells| {
            some.push(cells.iter().map(|cell| cell.text().to_owned()).collect());
            Ok(())
        })?;
        return guessed(file, test, &some, true);
    };
    let label = names
        .iter()
        .find(|name| is_called(name, NAMES[0]))
        .cloned()
        .unwrap_or_else(|| "label".into());
    let (path, test_file, image) = (file.into(), test.map(Into::into), names[image].clone());
    let mut table = Pictures { path, test_file, image, label, ..Pictures::default() };
    let some = table.some(LOOKED_AT)?;
    let (size, change) = size_of(&some);
    (table.size, table.channels) = (size.height, size.channels);
    let line = format!(
        "a Parquet file: {}{change} (image: {}; label: {})",
        table.read(&Selection::default())?.line(),
        table.image,
        table.label
    );
    Ok(Found { config: Config::Pictures(table), line })
}

/// A table whose first rows these are. With `has_names` the first of them names the columns; else it does so if a name that is
/// known is in it, and if none is, columns are given by number and reading the table decides.
fn guessed(
    file: &Path,
    test: Option<&Path>,
    some: &[Vec<String>],
    has_names: bool,
) -> Result<Found> {
    let Some((first, others)) = some.split_first() else {
        return Err(Error::unfit(file, "has no rows"));
    };
    let column = |place: usize| {
        others.iter().filter_map(move |row| row.get(place)).map(|field| field.trim())
    };
    let different = |place: usize| column(place).collect::<HashSet<_>>().len();
    let words = |place: usize| {
        let all: usize = column(place).map(|field| field.split_whitespace().count()).sum();
        all as f64 / others.len().max(1) as f64
    };
    // What stands in other rows too is no name.
    let is_named = |names: &str, place: usize| {
        is_called(&first[place], names) && !column(place).any(|other| other == first[place].trim())
    };
    let [labels, texts] = NAMES;
    let places = 0..first.len();
    let header = has_names
        || [labels, texts].iter().any(|names| places.clone().any(|place| is_named(names, place)));
    let label = match places.clone().find(|&place| is_named(labels, place)) {
        Some(place) => Some(place),
        None => places
            .clone()
            .filter(|&place| different(place) > 1)
            .min_by_key(|&place| different(place)),
    };
    let Some(label) = label.filter(|_| first.len() > 1) else {
        let problem = format!(
            "has no column of texts and one of labels; its columns are {}. Name them in place of --data: --dataset '{{ kind = \"table\", \
             file = \"…\", text = \"…\", label = \"…\" }}'",
            named(first)
        );
        return Err(Error::unfit(file, problem));
    };
    let mut text: Vec<usize> = places
        .clone()
        .filter(|&place| place != label && header && is_named(texts, place))
        .collect();
    if text.is_empty() {
        text = places.clone().filter(|&place| place != label && words(place) >= 2.0).collect();
    }
    if text.is_empty() {
        let longest = places.filter(|&place| place != label);
        text = longest.max_by(|a, b| words(*a).total_cmp(&words(*b))).into_iter().collect();
    }
    let column = |place: usize| match header {
        true => Column::Name(first[place].trim().to_owned()),
        false => Column::Number(place as u32 + 1),
    };
    let table = TextTable {
        file: file.into(),
        test_file: test.map(Into::into),
        text: match text.as_slice() {
            [one] => Columns::One(column(*one)),
            several => Columns::Several(several.iter().map(|&place| column(place)).collect()),
        },
        label: column(label),
        header: header.then_some(true),
        ..TextTable::default()
    };
    let called = |column: Column| match column {
        Column::Name(name) => name,
        Column::Number(number) => format!("column {number}"),
    };
    let texts: Vec<String> = text.iter().map(|&place| called(column(place))).collect();
    let line = format!(
        "a table{}: {} (text: {}; label: {})",
        if header { "" } else { ", columns by number" },
        table.read(&Selection::default())?.line(),
        named(&texts),
        called(column(label))
    );
    Ok(Found { config: Config::Table(table), line })
}
