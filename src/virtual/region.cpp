#include "virtual/region.h"

#include <algorithm>
#include <utility>

namespace zero::virtual_device {

Region::Region(const int64_t* sizes, const int64_t* strides, size_t dims, int64_t offset, size_t itemsize) {
  size_t count = 1, last = 0;
  for (size_t i = 0; i < dims; ++i) count *= static_cast<size_t>(sizes[i]);
  begin_ = end_ = static_cast<size_t>(offset) * itemsize;
  if (count == 0) return;
  for (size_t i = 0; i < dims; ++i)
    last += (static_cast<size_t>(sizes[i]) - 1) * static_cast<size_t>(strides[i]);
  end_ = begin_ + (last + 1) * itemsize;
  if (end_ - begin_ == count * itemsize) return;
  Gaps gaps{{}, itemsize};
  for (size_t i = 0; i < dims; ++i)
    if (sizes[i] > 1 && strides[i] > 0)
      gaps.dims.push_back({static_cast<size_t>(sizes[i]), static_cast<size_t>(strides[i]) * itemsize});
  std::sort(gaps.dims.begin(), gaps.dims.end(),
            [](const auto& a, const auto& b) { return a.stride_bytes > b.stride_bytes; });
  while (!gaps.dims.empty() && gaps.dims.back().stride_bytes <= gaps.run_bytes) {
    gaps.run_bytes += (gaps.dims.back().count - 1) * gaps.dims.back().stride_bytes;
    gaps.dims.pop_back();
  }
  if (!gaps.dims.empty()) gaps_ = std::make_shared<const Gaps>(std::move(gaps));
}

bool Region::Gaps::operator==(const Gaps& other) const {
  return run_bytes == other.run_bytes && std::equal(dims.begin(), dims.end(), other.dims.begin(),
                                                    other.dims.end(), [](const Dim& a, const Dim& b) {
                                                      return a.count == b.count &&
                                                             a.stride_bytes == b.stride_bytes;
                                                    });
}

std::vector<std::pair<size_t, size_t>> Region::runs() const {
  std::vector<std::pair<size_t, size_t>> runs{{begin_, end_}};
  if (gaps_ == nullptr) return runs;
  size_t count = 1;
  for (const auto& dim : gaps_->dims) count *= dim.count;
  if (count > kMostRuns) return runs;
  runs[0].second = begin_ + gaps_->run_bytes;
  for (const auto& dim : gaps_->dims) {
    std::vector<std::pair<size_t, size_t>> next;
    next.reserve(runs.size() * dim.count);
    for (const auto& [begin, end] : runs)
      for (size_t i = 0; i < dim.count; ++i)
        next.emplace_back(begin + i * dim.stride_bytes, end + i * dim.stride_bytes);
    runs = std::move(next);
  }
  return runs;
}

bool Region::overlaps(const Region& other) const {
  if (begin_ >= other.end_ || other.begin_ >= end_) return false;
  if (gaps_ == nullptr && other.gaps_ == nullptr) return true;
  std::vector<std::pair<size_t, size_t>> mine = runs(), theirs = other.runs();
  std::sort(mine.begin(), mine.end());
  std::sort(theirs.begin(), theirs.end());
  for (size_t i = 0, j = 0; i < mine.size() && j < theirs.size();) {
    if (mine[i].first < theirs[j].second && theirs[j].first < mine[i].second) return true;
    mine[i].second < theirs[j].second ? ++i : ++j;
  }
  return false;
}

bool Region::covers(const Region& other) const {
  if (gaps_ == nullptr) return begin_ <= other.begin_ && other.end_ <= end_;
  return begin_ == other.begin_ && end_ == other.end_ && other.gaps_ != nullptr &&
         (gaps_ == other.gaps_ || *gaps_ == *other.gaps_);
}

Region Region::shifted(size_t bytes) const {
  Region result = *this;
  result.begin_ += bytes;
  result.end_ += bytes;
  return result;
}

Region Region::part(size_t begin, size_t end) const {
  if (begin == 0 && end_ <= end) return *this;
  const size_t first = std::max(begin_, begin), last = std::min(end_, end);
  return first < last ? Region(first - begin, last - begin) : Region();
}

void ByteSet::add(const Region& region) {
  if (region.empty()) return;
  if (!region.has_gaps()) return add(region.begin(), region.end());
  for (const auto& [begin, end] : region.runs()) add(begin, end);
}

void ByteSet::add(size_t begin, size_t end) {
  auto first = std::lower_bound(intervals_.begin(), intervals_.end(), begin,
                                [](const auto& interval, size_t at) { return interval.second < at; });
  auto last = first;
  for (; last != intervals_.end() && last->first <= end; ++last) {
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
  }
  if (first == last) {
    intervals_.insert(first, {begin, end});
  } else {
    *first = {begin, end};
    intervals_.erase(first + 1, last);
  }
}

bool ByteSet::contains(const Region& region) const {
  if (region.empty() || contains(region.begin(), region.end())) return true;
  if (!region.has_gaps()) return false;
  const auto runs = region.runs();
  return std::all_of(runs.begin(), runs.end(),
                     [this](const auto& run) { return contains(run.first, run.second); });
}

bool ByteSet::contains(size_t begin, size_t end) const {
  const auto found = std::lower_bound(intervals_.begin(), intervals_.end(), end,
                                      [](const auto& interval, size_t at) { return interval.second < at; });
  return found != intervals_.end() && found->first <= begin;
}

void ByteSet::cut(size_t begin) {
  while (!intervals_.empty() && intervals_.back().second > begin) {
    if (intervals_.back().first < begin) {
      intervals_.back().second = begin;
    } else {
      intervals_.pop_back();
    }
  }
}

}  // namespace zero::virtual_device
