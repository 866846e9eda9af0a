// A stored dense matrix, read and turned into the layout it is computed in, piece by piece.
//
//   load_matrix(reader, Reader::kTrunk, completion, {&snapshot, name, ref}, view);
//   completion.wait();                       // view's bytes are there
//
// Each job stages whole panels of rows with one direct read and packs (or quantises) them on the
// reader's thread; or the stored rows are read in place and computed on as they are. NaN and
// infinite values are refused, naming file, tensor and element. Ownership: the view's bytes are the
// caller's and outlive the completion. Thread rule: as Reader::submit.
#pragma once

#include <string>

#include "weights/reader.h"
#include "weights/snapshot.h"

namespace k3 {

struct MatrixSource {
  const Snapshot* snapshot = nullptr;
  std::string name;       // canonical, for errors
  TensorRef ref;          // [rows, cols] BF16 or F32
  int64_t first_row = 0;  // the stored row that is row 0 of the view
};

// Whether the matrix can be computed on as it is stored, as kBf16Rows read by load_rows.
bool readable_in_place(const TensorRef& ref);
// Reads view.rows rows from first_row on as they are: `to` receives the aligned block that the
// first of them lies in (Reader::submit_span). `check` refuses NaN and infinity.
void load_rows(Reader& reader, Reader::Priority priority, Completion& completion,
               const MatrixSource& source, const WeightView& view, std::byte* to, bool check);

// Fills `view` (any panel layout) from rows first_row, ... of the source. With `transposed` the
// view is the transpose of stored rows [first_row, first_row + view.cols), whole.
void load_matrix(Reader& reader, Reader::Priority priority, Completion& completion,
                 const MatrixSource& source, const WeightView& view, bool transposed = false);

// The staging buffer that every matrix of this model fits: at least `wish`.
size_t staging_bytes_for(const ModelConfig& config, size_t wish);

}  // namespace k3
