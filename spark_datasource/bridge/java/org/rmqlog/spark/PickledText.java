package org.rmqlog.spark;

import java.nio.charset.StandardCharsets;
import java.util.Optional;

/** Texts that Python leaves for the bridge in what it pickles, between two markers. */
final class PickledText {
  private PickledText() {}

  /**
   * The text between the markers of a name. The last opening marker counts: a class that is
   * pickled by value carries the marker as a constant in front of its instance.
   */
  static Optional<String> find(byte[] pickled, String name) {
    String text = new String(pickled, StandardCharsets.ISO_8859_1);
    String opening = "<" + name + ">";
    int start = text.lastIndexOf(opening) + opening.length();
    int end = text.indexOf("</" + name + ">", start);
    return start < opening.length() || end < 0
        ? Optional.empty()
        : Optional.of(text.substring(start, end));
  }
}
