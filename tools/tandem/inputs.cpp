// SPDX-License-Identifier: Apache-2.0
#include "inputs.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "encode.hpp"
#include "noise.hpp"

namespace tandem::cli {
namespace {

constexpr std::int64_t rope_dim = 64;

// Where the parts of a row begin in one run of floats. dout is not among them: it has no source but noise.
struct RowShape {
  explicit RowShape(const ModelShape& shape)
      : heads(shape.heads),
        index_heads(shape.index_heads),
        dim(shape.dim),
        kv(heads * dim),
        index_q(kv + dim),
        index_k(index_q + index_heads * index_dim),
        index_w(index_k + index_dim),
        size(index_w + index_heads) {}
  std::int64_t heads, index_heads, dim;
  std::int64_t kv, index_q, index_k, index_w, size;
};

enum class Stream : std::uint64_t { row = 1, dout, embedding, key_matrix, query_matrix };

Noise noise_of(std::uint64_t seed, Stream stream) { return Noise(seed).at(static_cast<std::uint64_t>(stream)); }

float index_scale(const RowShape& shape) { return 1.0F / std::sqrt(static_cast<float>(shape.index_heads * index_dim)); }

void store(const float* values, const Tensor& target, std::int64_t row) {
  const std::size_t count = target.dims() == 1 ? 1 : static_cast<std::size_t>(target.row_elements());
  const std::size_t bytes = count * size_of(target.dtype());
  encode(values, count, target.dtype(), target.data_as<std::byte>() + static_cast<std::size_t>(row) * bytes);
}

// Interleaved pairs, base 10000. Angles in double: offsets are long, and float would lose their fraction.
class Rotation {
 public:
  explicit Rotation(std::int64_t offset) {
    for (std::size_t i = 0; i < pairs; ++i) {
      const double angle = static_cast<double>(offset) * std::pow(10000.0, -static_cast<double>(i) / pairs);
      cos_[i] = static_cast<float>(std::cos(angle));
      sin_[i] = static_cast<float>(std::sin(angle));
    }
  }
  void apply(float* columns) const {
    for (std::size_t i = 0; i < pairs; ++i) {
      const float a = columns[2 * i];
      const float b = columns[2 * i + 1];
      columns[2 * i] = a * cos_[i] - b * sin_[i];
      columns[2 * i + 1] = a * sin_[i] + b * cos_[i];
    }
  }

 private:
  static constexpr std::size_t pairs = rope_dim / 2;
  std::array<float, pairs> cos_{};
  std::array<float, pairs> sin_{};
};

void rotate_row(float* row, const RowShape& shape, std::int64_t offset) {
  const Rotation rotation(offset);
  for (std::int64_t h = 0; h < shape.heads; ++h) rotation.apply(row + (h + 1) * shape.dim - rope_dim);
  rotation.apply(row + shape.kv + shape.dim - rope_dim);
  for (std::int64_t h = 0; h < shape.index_heads; ++h) rotation.apply(row + shape.index_q + h * index_dim);
  rotation.apply(row + shape.index_k);
}

}  // namespace

class InputGenerator::RowSource {
 public:
  virtual ~RowSource() = default;
  /// RowShape::size floats for each of the tokens [begin, begin + count) of a document.
  virtual void fill(std::int64_t document, std::int64_t begin, std::int64_t count, float* out) const = 0;
};

class InputGenerator::NoiseSource : public RowSource {
 public:
  NoiseSource(const ModelShape& shape, std::uint64_t seed) : shape_(shape), noise_(noise_of(seed, Stream::row)) {}
  void fill(std::int64_t document, std::int64_t begin, std::int64_t count, float* out) const override {
    for (std::int64_t i = 0; i < count; ++i, out += shape_.size) {
      noise_.at(static_cast<std::uint64_t>(document), static_cast<std::uint64_t>(begin + i))
          .fill(out, static_cast<std::size_t>(shape_.size), 1.0F);
      for (std::int64_t w = shape_.index_w; w < shape_.size; ++w) out[w] *= index_scale(shape_);
    }
  }

 private:
  RowShape shape_;
  Noise noise_;
};

class InputGenerator::TextSource : public RowSource {
 public:
  TextSource(const ModelShape& shape, std::uint64_t seed, const std::vector<std::string>& texts)
      : shape_(shape),
        texts_(texts),
        embeddings_(static_cast<std::size_t>(context * 256 * width)),
        tiles_((static_cast<std::size_t>(shape_.size) + tile - 1) / tile),
        matrix_(tiles_ * width * tile) {
    noise_of(seed, Stream::embedding).fill(embeddings_.data(), embeddings_.size(), 1.0F);
    make_matrix(seed);
  }

  void fill(std::int64_t document, std::int64_t begin, std::int64_t count, float* out) const override {
    const std::string& text = texts_[static_cast<std::size_t>(document)];
    std::vector<float> hidden(static_cast<std::size_t>(count) * width);
    for (std::int64_t i = 0; i < count; ++i) embed(text, begin + i, hidden.data() + i * width);
    project(hidden.data(), count, out);
    for (std::int64_t i = 0; i < count; ++i, out += shape_.size) {
      rotate_row(out, shape_, begin + i);
      for (std::int64_t w = shape_.index_w; w < shape_.size; ++w) {
        out[w] = std::log1p(std::exp(out[w])) * index_scale(shape_);
      }
    }
  }

 private:
  static constexpr std::int64_t width = 64;   // of the embedding
  static constexpr std::int64_t context = 8;  // bytes that a row knows of
  static constexpr std::size_t tile = 32;     // columns of the matrix that are computed together

  // The matrix of all parts of a row, side by side: [tiles][width][tile]. A query head's columns are those of its keys,
  // attenuated, plus noise of its own.
  void make_matrix(std::uint64_t seed) {
    const Noise keys = noise_of(seed, Stream::key_matrix);
    const Noise queries = noise_of(seed, Stream::query_matrix);
    std::vector<float> column(width);
    std::vector<float> own(width);
    const float unit = 1.0F / std::sqrt(static_cast<float>(width));
    for (std::int64_t c = 0; c < shape_.size; ++c) {
      std::int64_t key = c;
      float shared = 1.0F;
      if (c < shape_.kv) {
        key = shape_.kv + c % shape_.dim;
        shared = 0.2F;
      } else if (c >= shape_.index_q && c < shape_.index_k) {
        key = shape_.index_k + (c - shape_.index_q) % index_dim;
        shared = 0.5F;
      }
      keys.at(static_cast<std::uint64_t>(key)).fill(column.data(), column.size(), shared * unit);
      queries.at(static_cast<std::uint64_t>(c)).fill(own.data(), own.size(), std::sqrt(1.0F - shared * shared) * unit);
      const std::size_t place = static_cast<std::size_t>(c);
      float* out = matrix_.data() + place / tile * width * tile + place % tile;
      for (std::size_t e = 0; e < width; ++e) out[e * tile] = column[e] + own[e];
    }
  }

  void embed(const std::string& text, std::int64_t offset, float* hidden) const {
    std::fill_n(hidden, width, 0.0F);
    float weight = 1.0F;
    for (std::int64_t back = 0; back < std::min(context, offset + 1); ++back, weight *= 0.8F) {
      const auto byte = static_cast<unsigned char>(text[static_cast<std::size_t>(offset - back)]);
      const float* row = embeddings_.data() + (back * 256 + byte) * width;
      for (std::int64_t e = 0; e < width; ++e) hidden[e] += weight * row[e];
    }
    float squares = 0.0F;
    for (std::int64_t e = 0; e < width; ++e) squares += hidden[e] * hidden[e];
    const float norm = 1.0F / std::sqrt(squares / width + 1e-6F);
    for (std::int64_t e = 0; e < width; ++e) hidden[e] *= norm;
  }

  // One order of additions for each element, whatever the rows computed beside it.
  void project(const float* hidden, std::int64_t count, float* out) const {
    for (std::size_t t = 0; t < tiles_; ++t) {
      const float* matrix = matrix_.data() + t * width * tile;
      const std::size_t columns = std::min(tile, static_cast<std::size_t>(shape_.size) - t * tile);
      for (std::int64_t i = 0; i < count; ++i) {
        std::array<float, tile> sums{};
        for (std::size_t e = 0; e < width; ++e) {
          const float x = hidden[static_cast<std::size_t>(i) * width + e];
          for (std::size_t c = 0; c < tile; ++c) sums[c] += x * matrix[e * tile + c];
        }
        std::copy_n(sums.begin(), columns, out + i * shape_.size + static_cast<std::int64_t>(t * tile));
      }
    }
  }

  RowShape shape_;
  std::vector<std::string> texts_;
  std::vector<float> embeddings_;  // [context][256][width]
  std::size_t tiles_;
  std::vector<float> matrix_;
};

DsaConfig config_of(const ModelShape& shape) {
  DsaConfig config;
  config.heads = shape.heads;
  config.index_heads = shape.index_heads;
  config.dim = shape.dim;
  config.topk = shape.topk;
  return config;
}

InputGenerator::InputGenerator(const DsaJob& job)
    : shape_(job.shape), dtype_(job.dtype), index_dtype_(job.indexer_dtype()), seed_(job.seed) {
  if (job.texts.empty()) {
    source_ = std::make_unique<NoiseSource>(job.shape, job.seed);
  } else {
    source_ = std::make_unique<TextSource>(job.shape, job.seed, job.texts);
  }
}

InputGenerator::~InputGenerator() = default;

InputRows InputGenerator::rows(const Device& device, const SequenceLayout& layout,
                               std::span<const RowRange> segments) const {
  std::int64_t count = 0;
  for (const RowRange& segment : segments) count += segment.size();
  InputRows rows;
  rows.inputs.q = Tensor::allocate(device, dtype_, {count, shape_.heads, shape_.dim});
  rows.inputs.kv = Tensor::allocate(device, dtype_, {count, shape_.dim});
  rows.inputs.index_q = Tensor::allocate(device, index_dtype_, {count, shape_.index_heads, index_dim});
  rows.inputs.index_k = Tensor::allocate(device, index_dtype_, {count, index_dim});
  if (index_dtype_ == DType::f8e4m3) rows.inputs.index_k_scale = Tensor::allocate(device, DType::f32, {count});
  rows.inputs.index_w = Tensor::allocate(device, DType::f32, {count, shape_.index_heads});
  rows.dout = Tensor::allocate(device, dtype_, {count, shape_.heads, value_dim});
  std::int64_t row = 0;
  for (const RowRange& segment : segments) {
    for (std::int64_t position = segment.begin; position < segment.end;) {
      // Up to the end of the segment, of the block, or of the document's real or pad rows.
      const std::int64_t limit = std::min(segment.end, position + block_rows);
      const bool real = layout.is_real(position);
      const std::int64_t document = layout.document(position);
      std::int64_t end = position + 1;
      while (end < limit && layout.is_real(end) == real && layout.document(end) == document) ++end;
      if (real) {
        const std::int64_t offset = position - layout.cu_seqlens_padded()[static_cast<std::size_t>(document)];
        store_tokens(rows, row, document, offset, end - position);
      } else {
        store_pads(rows, row, end - position);
      }
      row += end - position;
      position = end;
    }
  }
  return rows;
}

void InputGenerator::store_tokens(const InputRows& rows, std::int64_t row, std::int64_t document, std::int64_t offset,
                                  std::int64_t count) const {
  const RowShape shape(shape_);
  std::vector<float> values(static_cast<std::size_t>(count * shape.size));
  std::vector<float> dout(static_cast<std::size_t>(shape.heads * value_dim));
  source_->fill(document, offset, count, values.data());
  const Noise noise = noise_of(seed_, Stream::dout);
  for (std::int64_t i = 0; i < count; ++i) {
    float* v = values.data() + i * shape.size;
    if (index_dtype_ == DType::f8e4m3) {
      for (std::int64_t h = 0; h < shape.index_heads; ++h) {
        v[shape.index_w + h] *= scale_down(v + shape.index_q + h * index_dim, index_dim);
      }
      const float scale = scale_down(v + shape.index_k, index_dim);
      store(&scale, rows.inputs.index_k_scale, row + i);
    }
    store(v, rows.inputs.q, row + i);
    store(v + shape.kv, rows.inputs.kv, row + i);
    store(v + shape.index_q, rows.inputs.index_q, row + i);
    store(v + shape.index_k, rows.inputs.index_k, row + i);
    store(v + shape.index_w, rows.inputs.index_w, row + i);
    noise.at(static_cast<std::uint64_t>(document), static_cast<std::uint64_t>(offset + i))
        .fill(dout.data(), dout.size(), 1.0F);
    store(dout.data(), rows.dout, row + i);
  }
}

void InputGenerator::store_pads(const InputRows& rows, std::int64_t row, std::int64_t count) const {
  const RowShape shape(shape_);
  // As long as the longest row of any of them.
  const std::vector<float> nan(static_cast<std::size_t>(std::max(shape.size, shape.heads * value_dim)),
                               std::numeric_limits<float>::quiet_NaN());
  const DsaInputs& in = rows.inputs;
  for (std::int64_t i = 0; i < count; ++i) {
    for (const Tensor* t : {&in.q, &in.kv, &in.index_q, &in.index_k, &in.index_k_scale, &in.index_w, &rows.dout}) {
      if (t->valid()) store(nan.data(), *t, row + i);
    }
  }
}

}  // namespace tandem::cli
