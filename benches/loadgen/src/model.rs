//! Model files: reading what tensors a safetensors file has, and making one without a network.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use railhead_client::Region;
use safetensors::tensor::Metadata;
use sha2::{Digest, Sha256};

use crate::args::MakeModel;
use crate::digest::DIGEST_BYTES;
use crate::error::{BenchError, Result};
use crate::report::say;

/// The longest header that the format allows.
const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Bytes read at a time.
const STEP_BYTES: usize = 1 << 20;

/// One tensor's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// In the data section.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// A safetensors file whose header was read.
#[derive(Debug)]
pub(crate) struct Model {
    path: PathBuf,
    file: File,
    data_at: u64,
    pub(crate) data_bytes: u64,
    /// In the order of their bytes.
    pub(crate) tensors: Vec<Tensor>,
}

impl Model {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let wrong = |problem: String| BenchError::Model { path: path.to_owned(), problem };
        let mut file = File::open(path).map_err(BenchError::file(path))?;
        let file_bytes = file.metadata().map_err(BenchError::file(path))?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length)
            .map_err(|_| wrong(format!("{file_bytes} bytes are too few for a header")))?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > HEADER_BYTES_MAX || header_bytes + 8 > file_bytes {
            return Err(wrong(format!(
                "its header would have {header_bytes} bytes, the file has {file_bytes}"
            )));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(BenchError::file(path))?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| wrong(format!("header: {error}")))?;
        let mut tensors: Vec<Tensor> = metadata
            .tensors()
            .into_iter()
            .map(|(name, info)| {
                let (start, end) = info.data_offsets;
                Tensor { name, offset: start as u64, bytes: end.saturating_sub(start) as u64 }
            })
            .collect();
        tensors.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
        let data_bytes = tensors.iter().map(|tensor| tensor.offset + tensor.bytes).max().unwrap_or(0);
        let data_at = 8 + header_bytes;
        if data_at + data_bytes != file_bytes {
            let problem =
                format!("its tensors end at byte {}, the file at byte {file_bytes}", data_at + data_bytes);
            return Err(wrong(problem));
        }
        if tensors.is_empty() {
            return Err(wrong("it has no tensors".to_owned()));
        }
        Ok(Self { path: path.to_owned(), file, data_at, data_bytes, tensors })
    }

    /// Reads all tensors into the beginning of `region`; returns their digests.
    pub(crate) fn load(&mut self, region: &Region) -> Result<Vec<[u8; DIGEST_BYTES]>> {
        let mut step = vec![0; STEP_BYTES];
        let mut digests = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            let read = |error| BenchError::File { path: self.path.clone(), source: error };
            self.file.seek(SeekFrom::Start(self.data_at + tensor.offset)).map_err(read)?;
            let mut hasher = Sha256::new();
            let mut at = 0;
            while at < tensor.bytes {
                let count = (tensor.bytes - at).min(STEP_BYTES as u64) as usize;
                self.file.read_exact(&mut step[..count]).map_err(read)?;
                hasher.update(&step[..count]);
                let inside = region.copy_in(tensor.offset + at, &step[..count]);
                inside.map_err(|error| BenchError::Wrong(error.to_string()))?;
                at += count as u64;
            }
            digests.push(hasher.finalize().into());
        }
        Ok(digests)
    }
}

/// Writes the file, and says so.
pub(crate) fn make(options: &MakeModel) -> Result<()> {
    let written = write_model(&options.file).map_err(BenchError::file(&options.file))?;
    say(&format!(
        "{}: {} tensors, {} bytes: names and shapes of all-MiniLM-L6-v2, deterministic values (not the trained ones)\n",
        options.file.display(),
        written.0,
        written.1
    ));
    Ok(())
}

/// Names, types and shapes of all-MiniLM-L6-v2: a BERT of 6 layers, hidden size 384, 22.7 million parameters.
fn minilm() -> Vec<(String, &'static str, Vec<u64>)> {
    const HIDDEN: u64 = 384;
    const INNER: u64 = 1536;
    let mut tensors = vec![("embeddings.position_ids".to_owned(), "I64", vec![1, 512])];
    let mut float = |name: String, shape: &[u64]| tensors.push((name, "F32", shape.to_vec()));
    for part in ["bias", "weight"] {
        float(format!("embeddings.LayerNorm.{part}"), &[HIDDEN]);
    }
    float("embeddings.position_embeddings.weight".to_owned(), &[512, HIDDEN]);
    float("embeddings.token_type_embeddings.weight".to_owned(), &[2, HIDDEN]);
    float("embeddings.word_embeddings.weight".to_owned(), &[30_522, HIDDEN]);
    for layer in 0..6 {
        let base = format!("encoder.layer.{layer}");
        let dense = [
            ("attention.output.dense", HIDDEN, HIDDEN),
            ("attention.self.key", HIDDEN, HIDDEN),
            ("attention.self.query", HIDDEN, HIDDEN),
            ("attention.self.value", HIDDEN, HIDDEN),
            ("intermediate.dense", INNER, HIDDEN),
            ("output.dense", HIDDEN, INNER),
        ];
        for (name, rows, columns) in dense {
            float(format!("{base}.{name}.bias"), &[rows]);
            float(format!("{base}.{name}.weight"), &[rows, columns]);
        }
        for name in ["attention.output.LayerNorm", "output.LayerNorm"] {
            float(format!("{base}.{name}.bias"), &[HIDDEN]);
            float(format!("{base}.{name}.weight"), &[HIDDEN]);
        }
    }
    float("pooler.dense.bias".to_owned(), &[HIDDEN]);
    float("pooler.dense.weight".to_owned(), &[HIDDEN, HIDDEN]);
    // The format's own order: wide types first, then by name.
    tensors.sort_by(|a, b| (a.1 != "I64", &a.0).cmp(&(b.1 != "I64", &b.0)));
    tensors
}

/// Returns the tensors and bytes written.
fn write_model(path: &Path) -> std::io::Result<(usize, u64)> {
    let tensors = minilm();
    let mut header = serde_json::Map::new();
    let mut at = 0;
    for (name, dtype, shape) in &tensors {
        let width = if *dtype == "I64" { 8 } else { 4 };
        let bytes = shape.iter().product::<u64>() * width;
        let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, at + bytes] });
        header.insert(name.clone(), entry);
        at += bytes;
    }
    let mut header = serde_json::Value::Object(header).to_string().into_bytes();
    // The format pads with spaces, so that the data is aligned.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut out = BufWriter::with_capacity(STEP_BYTES, File::create(path)?);
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)?;
    let mut state = 0x5261_696c_6865_6164_u64;
    for (_, dtype, shape) in &tensors {
        for index in 0..shape.iter().product::<u64>() {
            if *dtype == "I64" {
                out.write_all(&index.to_le_bytes())?;
            } else {
                out.write_all(&next_weight(&mut state).to_le_bytes())?;
            }
        }
    }
    out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
    Ok((tensors.len(), 8 + header.len() as u64 + at))
}

/// A small number around zero, as weights are; xorshift64*.
fn next_weight(state: &mut u64) -> f32 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    let bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40;
    (bits as f32 / (1 << 24) as f32 - 0.5) * 0.2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_made_model_has_the_real_ones_tensors_and_is_always_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        let (count, bytes) = write_model(&one).unwrap();
        write_model(&two).unwrap();
        assert_eq!(count, 104);
        let content = std::fs::read(&one).unwrap();
        assert_eq!(content.len() as u64, bytes);
        assert!(content == std::fs::read(&two).unwrap());
        // The library of the format itself reads it.
        let parsed = safetensors::SafeTensors::deserialize(&content).unwrap();
        assert_eq!(parsed.len(), 104);
        let words = parsed.tensor("embeddings.word_embeddings.weight").unwrap();
        assert_eq!((words.shape(), words.dtype()), (&[30_522, 384][..], safetensors::Dtype::F32));
        let parameters: usize = parsed.iter().map(|(_, view)| view.shape().iter().product::<usize>()).sum();
        assert_eq!(parameters, 22_713_216 + 512);
        let model = Model::open(&one).unwrap();
        assert_eq!(model.tensors.len(), 104);
        assert_eq!(model.data_at + model.data_bytes, bytes);
    }

    #[test]
    fn files_that_are_no_models_are_refused_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let error = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            Model::open(&path).unwrap_err().to_string()
        };
        let with_header = |header: &str, data: usize| {
            let mut content = (header.len() as u64).to_le_bytes().to_vec();
            content.extend(header.as_bytes());
            content.resize(content.len() + data, 0);
            content
        };
        assert!(error(b"").contains("too few"));
        assert!(error(&[0xff; 20]).contains("header would have"));
        assert!(error(&with_header("{nonsense", 0)).contains("header:"));
        assert!(error(&with_header("{}", 0)).contains("no tensors"));
        let one = r#"{"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#;
        assert!(error(&with_header(one, 3)).contains("end at byte"));
        assert!(error(&with_header(one, 5)).contains("end at byte"));
        let wrong = r#"{"t":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}}"#;
        assert!(error(&with_header(wrong, 4)).contains("header:"));
        let absent = Model::open(&folder.path().join("absent")).unwrap_err().to_string();
        assert!(absent.contains("absent") && absent.contains("check the path"), "{absent}");
    }
}
