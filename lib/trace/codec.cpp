// SPDX-License-Identifier: Apache-2.0
#include "base/bytes.hpp"
#include "tandem/error.hpp"
#include "tandem/trace.hpp"

namespace tandem {
namespace {

constexpr std::uint32_t magic = 0x4E505354U;  // "TSPN"
constexpr std::uint16_t format_version = 1;
// The kind, three times 8 bytes and the lengths of three strings.
constexpr std::size_t smallest_span = 1 + 3 * 8 + 3 * 4;

void encode_span(detail::ByteWriter& out, const Span& span) {
  out.u8(static_cast<std::uint8_t>(span.kind));
  out.string(span.name);
  out.string(span.track);
  out.i64(span.begin_ns);
  out.i64(span.end_ns);
  out.u64(span.bytes);
  out.string(span.path);
}

Span decode_span(detail::ByteReader& in) {
  Span span;
  const std::uint8_t kind = in.u8();
  if (kind > static_cast<std::uint8_t>(SpanKind::wait)) {
    throw Error(ErrorCode::invalid_argument, "spans: there is no span kind " + std::to_string(kind));
  }
  span.kind = static_cast<SpanKind>(kind);
  span.name = in.string();
  span.track = in.string();
  span.begin_ns = in.i64();
  span.end_ns = in.i64();
  span.bytes = in.u64();
  span.path = in.string();
  return span;
}

}  // namespace

std::string encode_spans(const RankSpans& spans) {
  detail::ByteWriter out;
  out.u32(magic);
  out.u16(format_version);
  out.i32(spans.rank);
  out.i64(spans.clock_offset_ns);
  out.u32(static_cast<std::uint32_t>(spans.spans.size()));
  for (const Span& span : spans.spans) encode_span(out, span);
  return out.take();
}

RankSpans decode_spans(const std::string& bytes) {
  detail::ByteReader in(bytes);
  if (in.u32() != magic) throw Error(ErrorCode::invalid_argument, "spans: these bytes are not encoded spans");
  const std::uint16_t version = in.u16();
  if (version != format_version) {
    throw Error(ErrorCode::invalid_argument, "spans: format " + std::to_string(version) + " is not known here");
  }
  RankSpans spans;
  spans.rank = in.i32();
  spans.clock_offset_ns = in.i64();
  const std::size_t count = in.count(smallest_span);
  spans.spans.reserve(count);
  for (std::size_t i = 0; i < count; ++i) spans.spans.push_back(decode_span(in));
  in.expect_end();
  return spans;
}

}  // namespace tandem
