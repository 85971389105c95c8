// The fixed parts of the timeline's page. They know the data format of timeline_html.cc and one
// another: the two scripts are one after the other in one <script>.
#pragma once

namespace headrace {

extern const char* const kTimelineStyle;     // CSS
extern const char* const kTimelineBody;      // HTML of the controls and the canvas
extern const char* const kTimelineScript;    // JavaScript: reads the data, lays out and draws
extern const char* const kTimelineControls;  // JavaScript: mouse, keys, search, panels

}  // namespace headrace
